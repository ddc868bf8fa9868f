"""promptfoo's dialect: its config files become the same specs that geval's own become."""
