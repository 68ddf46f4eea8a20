"""The order of what is due."""
