"""The server's processes: a supervisor, its workers and the channel between them."""
