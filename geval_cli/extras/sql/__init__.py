"""Check that outputs are SQL and use only allowed tables and columns."""
