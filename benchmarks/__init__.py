"""Peers side by side in one run. Each module is a benchmark: `python -m benchmarks.train`; results go to results/."""
