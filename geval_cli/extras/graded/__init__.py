"""Assertions whose judge gives a verdict other than a rating: on a rubric, yes or no, or one of several choices."""
