"""The command line: reads arguments, calls the service, hands results to the reports."""
