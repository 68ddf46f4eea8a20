"""Where events come from: streams of the store, growing files and folders, Kafka. One source a file; no parsing."""
