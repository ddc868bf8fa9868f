"""Reading what a judge writes: an error, never a wrong number."""
