"""One learner a file; each is its paper's equations and the kernel that runs them."""
