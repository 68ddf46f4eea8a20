"""Metrics, health over HTTP, the access log and tracing."""
