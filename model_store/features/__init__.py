"""Feature keys: from a row's or a request's values to the keys of a model."""
