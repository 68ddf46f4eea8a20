"""The processes of a server, its gRPC services, and their interceptors: limits, security, errors."""
