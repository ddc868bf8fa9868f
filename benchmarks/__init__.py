"""Measurements of speed and memory. `make bench` runs everything here and prints ratios."""
