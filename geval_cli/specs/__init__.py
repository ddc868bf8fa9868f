"""The parts of a config as frozen models: prompts, providers, tests, assertions, options."""
