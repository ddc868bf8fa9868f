"""The suite editor: configs in the served folder, shown and changed in the browser."""

from geval_cli.extras.web.editor.routes import router

__all__ = ["router"]
