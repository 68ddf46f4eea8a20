"""Publishing while training: what changed since the last version goes out as a delta, now and then the whole model."""
