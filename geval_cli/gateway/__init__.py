"""The stack around every model call: deduplication, cache, fan-out, retries, adaptation to the server, and limits."""
