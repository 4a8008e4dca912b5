"""Worker processes: registration, heartbeats, lapses, drains."""
