"""Changes to YAML and JSON text that keep every other byte."""
