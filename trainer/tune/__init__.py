"""Hyperparameter search: candidate specs and successive halving."""
