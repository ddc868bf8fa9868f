"""Providers that run a program of the user."""
