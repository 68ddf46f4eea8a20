"""Training runs from start to finish: train, evaluate, replay, tune, the daemon."""
