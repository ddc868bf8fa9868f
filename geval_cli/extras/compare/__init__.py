"""Compare two runs: `geval compare`, and the baseline of a run."""
