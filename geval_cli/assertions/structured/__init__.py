"""Assertions about outputs that are JSON, XML, HTML, SQL or calls of tools."""
