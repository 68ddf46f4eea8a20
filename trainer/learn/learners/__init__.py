"""The learning algorithms, one a file, and the loops that run them."""
