"""Requests submitted as batches, at half the price: `geval run --batch`."""
