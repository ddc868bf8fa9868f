"""Tools that a model calls and geval answers, with functions, a model that simulates them, or recorded answers."""
