"""The inference worker: one engine behind the `Engine` service, weights from the store."""
