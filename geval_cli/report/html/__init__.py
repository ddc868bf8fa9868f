"""Shared by the web page and the HTML report: templates, styles, scripts, and the values that templates get."""
