"""Impressions: which items were ranked, with the features they were scored on, logged for a trainer."""
