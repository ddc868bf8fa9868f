"""Documents: YAML and JSON with positions, files, environment values, secrets, problems in words."""
