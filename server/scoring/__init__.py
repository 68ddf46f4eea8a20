"""Scoring: the plan's terms over a trie, tokens as arrays, what a model knows of items, and the kernels over them."""
