"""Where rows and events come from: files that grow or rotate, pipes, streams in Redis, Kafka; merged into one order."""
