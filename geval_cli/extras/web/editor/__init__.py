"""The suite editor: view and edit configs in the served folder in the browser."""
