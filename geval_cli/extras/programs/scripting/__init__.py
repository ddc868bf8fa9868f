"""Runs the code of a config in separate processes."""
