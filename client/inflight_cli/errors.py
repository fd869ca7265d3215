"""The exception that the commands show to a user as a single line."""


class CommandError(Exception):
    """Something that the user can put right; the message says what."""
