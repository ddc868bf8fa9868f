"""The HTTP API: judging single outputs, and runs."""
