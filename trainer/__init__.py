"""Learns models from click logs and publishes them to the model store. Never imports the server."""
