"""From rows of tokens to Arrow columns: one map from feature to x for each namespace."""
