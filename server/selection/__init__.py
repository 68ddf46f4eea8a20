"""Selection: from scores to the items returned. Conditions, exploration, the objective's order, caps, propensities."""
