"""geval's tools for assistants, over the Model Context Protocol (MCP)."""
