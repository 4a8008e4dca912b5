"""Groups: siblings of one prompt and one environment seed."""
