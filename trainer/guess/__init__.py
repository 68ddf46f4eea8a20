"""Guesses a spec from a log, for `ftrie init`."""
