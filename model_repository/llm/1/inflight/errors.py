"""Exceptions that the engine raises on purpose. Any other exception that leaves the engine is a bug."""


class InvalidRequest(ValueError):
    """The engine refuses a request on arrival. The message names the field, the value and the bound."""


class QueueFull(RuntimeError):
    """The waiting queue, or one priority level of it, is full. The same request may succeed later."""


class EngineDead(RuntimeError):
    """The engine has stopped stepping and serves no more requests."""


class OutOfMemory(RuntimeError):
    """The device has too little memory for a step. A smaller step may succeed."""


class UnsupportedModel(ValueError):
    """The engine cannot reproduce the output of this model token for token. The message says why."""
