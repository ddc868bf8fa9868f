"""Requests handed in as batches, at half the price: `geval run --batch`."""
