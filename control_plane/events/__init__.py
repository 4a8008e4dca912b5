"""The event log of a job, as a long poll and as a stream."""
