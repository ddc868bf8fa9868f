"""Programs that a config names: as providers, in assertions, for prompts and variables."""
