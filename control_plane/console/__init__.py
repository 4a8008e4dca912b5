"""The console: one plain page over the public API."""
