"""Gives a response to Triton."""

from typing import Any


def send(sender: Any, response: Any, flags: int = 0) -> None:
    """Send a response by one of Triton's response senders. Raises what the sender raises.

    Triton (24.10) first removes the outputs that the client did not ask for, without Python's lock. If the response
    had the last references to their arrays, this would corrupt the memory of the process.
    """
    tensors = response.output_tensors()
    sender.send(response, flags=flags)
    del tensors
