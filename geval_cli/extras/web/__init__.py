"""The HTTP API and the web page: a thin front that parses requests, calls the service and shows what it says."""
