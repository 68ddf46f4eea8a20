"""A model's keys as a flat prefix trie."""
