"""Keeps models, items and experiments up to date with the store."""
