"""Watching a job until it is over: a live view in a terminal, lines elsewhere, and the report at the end."""
