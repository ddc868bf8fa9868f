"""A run on a pull request: one comment that says what it changed, Markdown, JUnit, and problems at lines."""
