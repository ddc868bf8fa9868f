"""G-Eval: an LLM judge that rates outputs. `grading.grade` turns a metric and a test case into a grade."""
