"""Simulated users: whether they are like real ones."""
