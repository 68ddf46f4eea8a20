"""Charts, report pages and plots: all that ftrie draws."""
