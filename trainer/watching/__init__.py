"""Watching a model learn: progressive metrics."""
