"""Code from a config, run in processes of its own."""
