"""Any HTTP API as a provider (`http://...`, `https://...`), with its request described in the config."""
