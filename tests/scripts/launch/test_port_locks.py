"""Two servers that start at the same time do not use the same port."""

from pathlib import Path

import pytest

from scripts.launch.errors import LauncherError
from scripts.launch.port_locks import locked_ports


def test_a_port_belongs_to_the_first_one(tmp_path: Path) -> None:
    ports = {"HTTP_PORT": 8000, "GRPC_PORT": 8001}
    for _ in range(2):
        with locked_ports(tmp_path / "ports", ports):
            with locked_ports(tmp_path / "ports", {"HTTP_PORT": 8100, "GRPC_PORT": 8101}):
                pass
            with (
                pytest.raises(LauncherError, match="GRPC_PORT is 8000; another server uses that port, or is about to"),
                locked_ports(tmp_path / "ports", {"HTTP_PORT": 8100, "GRPC_PORT": 8000}),
            ):
                pass
