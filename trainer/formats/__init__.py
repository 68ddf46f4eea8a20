"""Reads logs of rows: CSV, JSON lines, Parquet, sparse text formats, tables in memory; its cache on disk."""
