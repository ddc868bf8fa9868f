"""Show runs to people: live progress, tables, failures, summaries and files. Listens, never executes."""
