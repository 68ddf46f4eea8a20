"""Making a delta of two models, and a model of a delta and the one before. The types are `delta` and `artefact`."""
