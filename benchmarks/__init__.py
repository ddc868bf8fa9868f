"""What is fast and small about geval, measured. `make bench` runs everything here and prints ratios."""
