"""When a key enters the model and when it leaves it again: the paper's section 4.1, and a time to live."""
