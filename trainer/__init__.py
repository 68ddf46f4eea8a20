"""Learns models from click logs and hands them to the model store. Never imports the server."""
