"""The rows of one request: keeping them together, and learning from a part of the requests without a click."""
