"""From a request's bytes to a message, without a Python object for each of its candidates."""
