"""Check that outputs are SQL, and use only what is allowed."""
