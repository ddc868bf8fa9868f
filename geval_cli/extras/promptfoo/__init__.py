"""Reads configs of promptfoo's dialect into the same suite."""
