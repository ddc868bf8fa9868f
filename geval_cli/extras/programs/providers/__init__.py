"""Providers that are programs of the user."""
