"""Watching a model on parts of the rows: one group for each value of a field, or for each key under a prefix."""
