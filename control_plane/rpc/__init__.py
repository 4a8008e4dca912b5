"""The gRPC Control service."""
