"""The exception that the scripts report to the user as a single line."""


class LauncherError(RuntimeError):
    """An error that the user can fix. The message says what is wrong."""
