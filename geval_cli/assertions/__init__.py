"""The checks that a config can put on an output, one registry for all of them."""
