"""From a config file to the typed suite: prompts, providers, tests, checks, JSON Schema."""
