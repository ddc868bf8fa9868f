"""G-Eval: an LLM judge that rates outputs. `grading.grade` goes the way from a metric to a grade."""
