"""The exception that the scripts show to a user as a single line."""


class LauncherError(RuntimeError):
    """Something that the user can put right; the message says what."""
