"""G-Eval: an LLM judge that rates outputs. See `grading.grade` for the way from a metric to a grade."""
