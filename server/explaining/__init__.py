"""Explaining: a score taken apart into its keys, by the definition and not by the ranking kernel."""
