"""Whether a judge can be trusted: its scores held against people's labels."""
