"""The gRPC services and their interceptors: limits, security, errors."""
