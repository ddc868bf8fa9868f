"""Any HTTP API as a provider, its requests described in the config: `http://...`, `https://...`."""
