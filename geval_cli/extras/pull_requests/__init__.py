"""One comment on a pull request that says what it changed."""
