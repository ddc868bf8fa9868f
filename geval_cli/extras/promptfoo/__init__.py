"""Reads promptfoo's configs into the same suite as geval's own."""
