"""Impressions and feedback as events, and as labelled rows once they are joined."""
