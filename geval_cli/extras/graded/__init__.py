"""Assertions whose judge answers a question in words of its own: a rubric, yes or no, one of several."""
