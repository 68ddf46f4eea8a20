"""Order: the best of many scores, deterministically."""
