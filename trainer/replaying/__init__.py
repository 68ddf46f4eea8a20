"""`ftrie replay`: a log run through the daemon's own join and learner, and what other policies would have earned on it.

Start at `stream.py` for the replay and at `off_policy.py` for the estimates. Nothing here serves or explores: the
propensities are those that the log was written with.
"""
