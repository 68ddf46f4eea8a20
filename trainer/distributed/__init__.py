"""Training on many machines: rows on workers, keys on reducers, and consensus between them, on Ray."""
