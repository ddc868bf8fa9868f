"""HTTP/1.1 as a client: what model calls need of it, over asyncio and httptools."""
