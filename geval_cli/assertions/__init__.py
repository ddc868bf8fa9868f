"""The assertions that a config can make about an output, and the registry of their types."""
