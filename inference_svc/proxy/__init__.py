"""The LLM proxy: logical requests of environment managers on one side, engine workers on the other."""
