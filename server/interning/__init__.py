"""Interning: byte strings become small numbers. `ids` finds items, `halves` the item halves of a model's crosses."""
