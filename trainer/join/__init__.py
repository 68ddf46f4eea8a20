"""Joins impressions with the feedback that belongs to them, within a time window."""
