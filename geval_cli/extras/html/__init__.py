"""A run as HTML: the file of `-o report.html`, and templates, scripts and charts that the server's pages share."""
