"""Questions to live services before a job is accepted: does the model exist, does the environment import."""
