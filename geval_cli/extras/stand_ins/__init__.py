"""Providers that stand in for a model, in demos and tests."""
