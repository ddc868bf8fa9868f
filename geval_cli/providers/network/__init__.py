"""HTTP for every provider: a single place that sends requests, with limits on everything that comes back."""
