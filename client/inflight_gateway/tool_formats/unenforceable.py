"""The error of a tool whose schema cannot be enforced."""


class Unenforceable(Exception):
    """The arguments of a tool cannot be made to match its schema in a format of calls."""

    def __init__(self, tool: str, what: str) -> None:
        super().__init__(f"tool {tool} cannot be enforced: {what}")
