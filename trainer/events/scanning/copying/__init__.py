"""Values on their way from a block to columns."""
