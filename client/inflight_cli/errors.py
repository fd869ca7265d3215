"""The exception that a command shows to the user as one line, and a check that raises it."""


class CommandError(Exception):
    """An error that the user can fix; the message says how."""


def check_text(text: str, source: str) -> None:
    """Check a text that Python has read from the terminal, an argument or the environment.

    Python keeps bytes that are not UTF-8 as halves of surrogate pairs, which cannot be sent.

    Raises:
        CommandError: it has such bytes. The message does not show the text, which may be secret.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise CommandError(f"{source} is not UTF-8: see character {error.start}") from None
