"""Other servers with the same protocol as ours, so that one client can put load on both."""

from collections.abc import Sequence

from scripts.launch.command_process import CommandProcess
from scripts.launch.server_process import fill_ports

MODEL = "model"
"""The servers' name for the model that they serve."""
CONTEXT = 1536
"""Room for a request in tokens. Prompt and answer together are shorter in all loads of the benchmarks."""


class Peer(CommandProcess):
    """A server with OpenAI's protocol on its HTTP port."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        (port,) = fill_ports(None)
        super().__init__(name, [*command, "--port", str(port)], environment, port)
