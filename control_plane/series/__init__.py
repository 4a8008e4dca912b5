"""What a job has done over time: steps, versions, metrics."""
