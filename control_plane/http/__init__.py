"""What every route shares: problems, limits, request ids, metrics, cursors, JSON, event streams."""
