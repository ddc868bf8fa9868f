"""Requests submitted in batches at half the price: `geval run --batch`."""
