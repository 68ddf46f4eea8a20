"""Trying parameters of the learner on a log: candidates, the passes that learn them, the ranking, the best spec."""
