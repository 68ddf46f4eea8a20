"""Every picture of ftrie: reports, notebooks, benchmarks and the dashboard draw with these functions."""
