"""What became of answers online, counted from the joined events; model_store/online_metrics.py keeps it."""
