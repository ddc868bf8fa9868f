"""Benchmarks of speed and memory. `make bench` runs all of them and prints ratios."""
