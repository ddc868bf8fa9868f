"""The HTTP API: judge single outputs, start and manage runs, and label their outputs."""
