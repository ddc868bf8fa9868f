"""Model APIs over HTTP: how requests are written and answers are read."""
