"""Plumbing with no domain: settings, logs, metrics, gRPC, streams and the life of a service process."""
