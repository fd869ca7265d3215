"""The exception that a command shows to the user as one line."""


class CommandError(Exception):
    """An error that the user can fix; the message says how."""
