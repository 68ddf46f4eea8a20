"""Columns of sets and weighted sets: the members of every row, each once, and their x. Knows no fields and no keys."""
