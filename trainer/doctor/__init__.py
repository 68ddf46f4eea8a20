"""What is wrong with a log for learning, found in one pass before it is learned: `ftrie doctor`."""
