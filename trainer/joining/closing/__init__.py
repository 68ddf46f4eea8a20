"""Giving rows out, and what is due: closing, giving up, forgetting."""
