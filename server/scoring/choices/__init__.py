"""Choices: the keys that one term makes of a row's tokens, one at a time, and where each lies."""
