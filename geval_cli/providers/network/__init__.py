"""HTTP for every provider: one place that sends a request, with bounds on everything that comes back."""
