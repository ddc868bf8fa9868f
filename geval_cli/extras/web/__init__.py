"""The HTTP API and the web pages: a thin layer that parses requests, calls the service and shows its answers."""
