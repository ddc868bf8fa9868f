"""G-Eval for Python programs; what is public here is exported by `geval_cli` itself."""
