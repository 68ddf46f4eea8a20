"""Scoring logs with a published model: `ftrie evaluate` and `ftrie audit`. Learns nothing, changes nothing."""
