"""Impressions: what was shown, with the features it was scored on, logged beside the calls for a trainer."""
