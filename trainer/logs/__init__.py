"""Reads log files: CSV, JSON lines, Parquet and sparse text formats."""
