"""The learning algorithms, one a file."""
