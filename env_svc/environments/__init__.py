"""Environments that ship with Headrace; each is a plug-in named by import path."""
