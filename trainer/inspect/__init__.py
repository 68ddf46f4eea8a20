"""Looks at a log: guesses a spec for `ftrie init`, and finds what is wrong for `ftrie doctor`."""
