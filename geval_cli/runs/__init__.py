"""The use cases, and the only place where rooms are wired together: check a suite, run it, read stored runs."""
