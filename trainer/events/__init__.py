"""Impressions and feedback as events, read from streams and growing files in one order."""
