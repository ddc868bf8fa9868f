"""Run in several processes or on several machines: `--workers` and `--ray`."""
