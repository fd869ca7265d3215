"""Other servers with the same protocol as ours, so that one client can put load on both."""

from collections.abc import Sequence

from scripts.launch.server_process import ServerProcess, fill_ports

MODEL = "model"
"""The servers' name for the model that they serve."""
CONTEXT = 1536
"""Room for a request in tokens. Prompt and answer together are shorter in all loads of the benchmarks."""


class Peer(ServerProcess):
    """A server with OpenAI's protocol on its HTTP port."""

    def __init__(self, name: str, command: Sequence[str], environment: dict[str, str]) -> None:
        (port,) = fill_ports(None)
        super().__init__(port, drain_seconds=5)
        self.name = name
        self._command = [*command, "--port", str(port)]
        self._environment = environment

    def _launch(self) -> tuple[list[str], dict[str, str]]:
        return self._command, self._environment

    def wait_ready(self, timeout: float) -> None:
        """Wait until the server is ready. Raises what `wait_for` raises."""
        self.wait_for(["/health"], timeout)
