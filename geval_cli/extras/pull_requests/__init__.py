"""Runs on pull requests: a comment with the changes, Markdown and JUnit files, and problems at config lines."""
