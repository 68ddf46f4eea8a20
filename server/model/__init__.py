"""The model that a server answers from: shared arrays, weights and the item catalogue."""
