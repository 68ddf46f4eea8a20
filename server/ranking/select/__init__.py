"""Selection of the answer from scored candidates: objective, filters, limits, exploration, propensity."""
