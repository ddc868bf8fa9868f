"""Read a judge's replies: an unclear one is an error, never a wrong number."""
