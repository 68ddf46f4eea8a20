"""Training runs from start to finish: train, evaluate, replay, the trainer."""
