"""Events as they are read: impressions and feedback, from streams and growing files, in one order."""
