"""Model endpoints: one module a vendor or kind; `registry` builds them from a config."""
