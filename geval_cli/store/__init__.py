"""SQLite: the runs and their results, and the cache of model answers. The only SQL in the product."""
