"""Reinforcement learning of language-model agents, as services."""

__version__ = "0.1.0"
