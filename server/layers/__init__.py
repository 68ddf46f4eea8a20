"""Layers: a model's keys in a large trie that stays and a small one for keys that came since, with values by slot."""
