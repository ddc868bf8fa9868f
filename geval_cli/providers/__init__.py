"""Model endpoints: one module per vendor or kind; `registry` builds them from a config."""
