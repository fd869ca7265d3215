import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from scripts.fleet.configs import FOLDER, configs
from scripts.fleet.envoy import envoy_config, install
from scripts.fleet.fleet import Fleet
from scripts.fleet.haproxy import haproxy_config
from scripts.fleet.member import Member
from scripts.fleet.nginx import nginx_config
from scripts.launch.errors import LauncherError
from scripts.launch.server_process import ADDRESS, fill_ports

MEMBERS = [Member(f"llm-{number}", f"127.0.0.{number}") for number in (1, 2, 3)]
BINDS = {"grpc_bind": "127.0.0.1:18001", "http_bind": "127.0.0.1:19000"}


def program(name: str) -> str:
    path = shutil.which(name, path="/usr/local/sbin:/usr/sbin:/usr/local/bin:/usr/bin")
    if path is None:
        pytest.skip(f"{name} is not installed")
    return path


def test_the_files_for_users_are_what_the_fleet_runs() -> None:
    assert {file.name: file.read_text() for file in FOLDER.iterdir()} == configs()


def test_a_fleet_has_servers(tmp_path: Path) -> None:
    with pytest.raises(LauncherError, match="the number of servers is 0; it must be at least 1"):
        Fleet(tmp_path, 0, "none", kv_cache_tokens=1024, prometheus=False)


def test_haproxy_takes_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "haproxy.cfg"
    file.write_text(haproxy_config(MEMBERS, **BINDS))
    checked = subprocess.run([program("haproxy"), "-c", "-f", str(file)], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr, checked.stderr


def test_haproxy_notices_a_gateway_that_accepts_and_never_answers(tmp_path: Path) -> None:
    grpc_port, http_port = fill_ports(None, None)
    command = [program("haproxy"), "-f", str(tmp_path / "haproxy.cfg")]
    with socket.create_server((ADDRESS, 0)) as hanging:
        config = haproxy_config(
            [Member("llm-1", ADDRESS, gateway_port=hanging.getsockname()[1])],
            grpc_bind=f"{ADDRESS}:{grpc_port}",
            http_bind=f"{ADDRESS}:{http_port}",
        )
        (tmp_path / "haproxy.cfg").write_text(config.replace("timeout check 5s", "timeout check 100ms"))
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as haproxy:
            assert haproxy.stdout is not None
            timer = threading.Timer(30, haproxy.kill)
            timer.start()
            found = any(line.startswith("Server openai/llm-1 is DOWN") for line in haproxy.stdout)
            haproxy.kill()
            timer.cancel()
    assert found


def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(nginx_config(MEMBERS, **BINDS))
    command = [program("nginx"), "-t", "-e", "stderr", "-p", str(tmp_path), "-c", str(file)]
    command += ["-g", f"pid {tmp_path}/nginx.pid;"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


class Counting(grpc.GenericRpcHandler):
    """Answers each message of a stream with its size."""

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        def sizes(messages: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            return (str(len(message)).encode() for message in messages)

        return grpc.stream_stream_rpc_method_handler(sizes)


def test_a_stream_through_nginx_may_bring_many_requests(tmp_path: Path) -> None:
    """tritonclient sends all requests of a client on one stream."""
    grpc_port, http_port = fill_ports(None, None)
    file = tmp_path / "nginx.conf"
    command = [program("nginx"), "-e", "stderr", "-p", str(tmp_path), "-c", str(file)]
    command += ["-g", f"daemon off; pid {tmp_path}/nginx.pid;"]
    with ThreadPoolExecutor() as pool:
        server = grpc.server(pool, handlers=[Counting()])
        member = Member("llm-1", ADDRESS, grpc_port=server.add_insecure_port(f"{ADDRESS}:0"))
        server.start()
        file.write_text(nginx_config([member], grpc_bind=f"{ADDRESS}:{grpc_port}", http_bind=f"{ADDRESS}:{http_port}"))
        with subprocess.Popen(command) as nginx, grpc.insecure_channel(f"{ADDRESS}:{grpc_port}") as channel:
            try:
                messages = iter([bytes(1_000_000)] * 10)
                stream = channel.stream_stream("/any/method")(messages, timeout=60, wait_for_ready=True)
                assert [*stream] == [b"1000000"] * 10
            finally:
                nginx.terminate()
        server.stop(None).wait()


def test_envoy_takes_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text(envoy_config(MEMBERS, **BINDS))
    command = [str(install()), "--mode", "validate", "--config-path", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "warning" not in checked.stderr, checked.stderr
