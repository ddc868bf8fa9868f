"""The commands that hold judges against people."""
