"""Redis streams: impressions, feedback and dead letters."""
