"""User programs that a config names: as providers, in assertions, and to generate prompts and variables."""
