"""Users whom models play, and how real they are."""
