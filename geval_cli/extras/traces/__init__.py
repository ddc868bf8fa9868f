"""Answers that an application gave before, read from its traces."""
