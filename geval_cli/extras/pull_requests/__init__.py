"""What a pull request shows of a run: one comment that says what it changed, Markdown, JUnit, problems at lines."""
