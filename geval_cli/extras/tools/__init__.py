"""Tools that a model calls and geval answers: by functions, by a model that stands in for them, or as recorded."""
