"""What a worker keeps of users: which fields a model wants, the values read, ready for the ranker, and for how long."""
