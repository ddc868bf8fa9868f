"""Assertions about the text of an output."""
