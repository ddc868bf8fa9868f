"""Assertions that are the user's own code or server."""
