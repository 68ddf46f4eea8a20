"""Slot layouts of the value table: one for each combination of `values`, `precision` and `rate`."""
