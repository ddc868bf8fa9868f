"""From a checked suite to results: plan, one job, the stream of events, and the sums."""
