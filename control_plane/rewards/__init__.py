"""Rewards as workers report them: the first outcome that is final stands."""
