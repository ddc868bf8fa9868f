"""Model APIs over HTTP: a request to the wire and back."""
