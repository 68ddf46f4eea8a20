"""Serves published models over gRPC. Never imports the trainer."""
