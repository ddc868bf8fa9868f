"""The store in SQLite: runs with their results, and the cache of model answers. All SQL of the product is here."""
