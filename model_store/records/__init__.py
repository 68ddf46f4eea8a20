"""User and item records and candidate sets in Redis."""
