"""One of the servers behind a client."""

from dataclasses import dataclass


@dataclass(eq=False)
class Server:
    """What a client knows of a server. `Fleet` changes it, under its lock."""

    address: str
    """Host and port."""
    num_running: int = 0
    """Unfinished requests of this client."""
    is_ejected: bool = False
    """Whether the last request failed because there is no server, or it does not serve."""
    is_gone: bool = False
    """Whether its name no longer has this address."""
