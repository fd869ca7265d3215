"""The conditions that a sweep's results depend on, besides the server's settings."""

import time
from collections.abc import Mapping
from importlib.metadata import version

from inflight_client import ServerInfo
from scripts.launch.default_model import NAME
from scripts.launch.environment import environment
from scripts.launch.served_model import DEVICE, DTYPE


def about_server(info: ServerInfo, url: str, *, own: bool) -> Mapping[str, str]:
    """Describe the server, the load generator's machine, and versions. Only a server that the sweep started is fully
    described."""
    here = environment(DTYPE, DEVICE)
    machine = f"{here['cpu']}, {here['cores']} cores"
    served = {"model": f"{NAME}, {here['dtype']}", "versions": f"Inflight {version('inflight')}, {here['versions']}"}
    return {
        "server": f"{info.name} {info.version} at {url}",
        **(served if own else {}),
        "machine": f"{machine}, for the server and the load generator" if own else f"load generator: {machine}",
        "when": time.strftime("%Y-%m-%d %H:%M %Z"),
    }
