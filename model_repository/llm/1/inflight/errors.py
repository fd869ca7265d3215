"""What the engine raises on purpose. Anything else that escapes it is a fault of ours."""


class InvalidRequest(ValueError):
    """A request that is refused at the door; the message names the field, the value and the bound."""


class QueueFull(RuntimeError):
    """The waiting queue, or a level of it, is at its bound; the same request may succeed later."""


class EngineDead(RuntimeError):
    """The engine stopped stepping and serves nothing any more."""


class OutOfMemory(RuntimeError):
    """The device's memory did not suffice for a step; a smaller one may succeed."""


class UnsupportedModel(ValueError):
    """A model that cannot be served token for token right; the message says why."""
