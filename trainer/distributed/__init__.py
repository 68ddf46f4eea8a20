"""Training beyond one machine: shards of the rows, ranges of the keys, and the methods that minimise over both."""
