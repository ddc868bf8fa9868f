"""The version, on its own so that `geval --version` and the build read it without importing anything."""

__version__ = "0.1.0"
