"""Lanes: several sums over the same keys in one walk: variants side by side, and how unsure the first of them is."""
