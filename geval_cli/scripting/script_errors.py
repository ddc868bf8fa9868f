"""Define the errors of a user's code."""


class ScriptError(Exception):
    """The user's code raised, or gave back what is no JSON. `detail` is its traceback."""

    def __init__(self, message: str, *, detail: str = "") -> None:
        super().__init__(message)
        self.detail = detail


class ScriptCrashError(ScriptError):
    """The process ended instead of answering. `detail` is the end of what it wrote to stderr."""


class ScriptTimeoutError(ScriptError):
    """The call took longer than it may, and was stopped."""


class ScriptLimitError(ScriptError):
    """The code wants what it cannot have: more memory, a module, the network, the environment."""
