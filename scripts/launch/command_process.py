"""A server that a command line starts."""

from collections.abc import Mapping, Sequence

from scripts.launch.server_process import ServerProcess


class CommandProcess(ServerProcess):
    """A server other than Triton, such as a gateway or a load balancer. Used like `ServerProcess`."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], port: int, *, health: str = "/health"
    ) -> None:
        """`port` is that of its HTTP endpoint, where `health` answers with status 200 when it is ready."""
        super().__init__(port, drain_seconds=5)
        self.name = name
        self._command, self._environment, self._health = command, environment, health

    def _launch(self) -> tuple[Sequence[str], Mapping[str, str]]:
        return self._command, self._environment

    def wait_ready(self, timeout: float) -> None:
        """Wait until the server is ready. Raises what `wait_for` raises."""
        self.wait_for([self._health], timeout)
