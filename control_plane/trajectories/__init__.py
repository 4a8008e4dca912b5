"""Trajectories: the attempts of a job, with segments, rewards, tokens and texts."""
