"""Ranking: from a request message to scored, ordered candidates."""
