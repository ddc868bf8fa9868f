"""The suite editor: configs in the served folder, shown and changed in the browser."""
