"""Extras: what can stand beside the core. Each registers what it adds; the core imports none of them."""
