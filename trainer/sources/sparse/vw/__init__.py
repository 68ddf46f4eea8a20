"""The grammar of Vowpal Wabbit's lines."""
