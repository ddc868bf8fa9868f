"""Intervals and quantiles; pure functions of numbers."""
