"""What people see of a run: live progress, tables, failures, summaries and files. Listens, never executes."""
