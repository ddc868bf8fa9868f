"""Answers that an application has already given, read from its traces."""
