"""Strings, numbers and words of JSON, as they are written."""
