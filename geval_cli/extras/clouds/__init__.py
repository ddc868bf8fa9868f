"""Models in Google Cloud and Azure, by the clouds' own credentials."""
