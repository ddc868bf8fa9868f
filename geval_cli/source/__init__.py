"""Documents: YAML and JSON with positions, files, environment values, secrets, and problems as text."""
