"""From a checked suite to results: the plan, a single job, the stream of events, and the totals."""
