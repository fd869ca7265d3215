"""How a call names a function."""

from typing import NamedTuple


class FunctionName(NamedTuple):
    """The name of a function, and that of its namespace if it is in one."""

    name: str
    namespace: str | None = None

    @property
    def shown(self) -> str:
        """The name that the model sees."""
        return self.name if self.namespace is None else f"{self.namespace}.{self.name}"
