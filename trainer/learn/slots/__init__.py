"""Slot layouts of the value table, one a numeric precision."""
