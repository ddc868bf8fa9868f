"""What the web page and the HTML report share: templates, styles, scripts, and what the templates are given."""
