"""The stack around every model call: shared, cached, fanned out, retried, adapted to the server, limited."""
