"""The library for Python programs; `geval_cli` itself exports what is public here."""
