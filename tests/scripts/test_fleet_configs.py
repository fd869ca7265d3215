import shutil
import subprocess
from pathlib import Path

import pytest

from scripts.fleet.configs import FOLDER, configs
from scripts.fleet.envoy import envoy_config, install
from scripts.fleet.fleet import Fleet
from scripts.fleet.haproxy import haproxy_config
from scripts.fleet.member import Member
from scripts.fleet.nginx import nginx_config
from scripts.launch.errors import LauncherError

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


def test_nginx_takes_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "nginx.conf"
    file.write_text(nginx_config(MEMBERS, **BINDS))
    command = [program("nginx"), "-t", "-e", "stderr", "-p", str(tmp_path), "-c", str(file)]
    command += ["-g", f"pid {tmp_path}/nginx.pid;"]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_envoy_takes_its_configuration(tmp_path: Path) -> None:
    file = tmp_path / "envoy.yaml"
    file.write_text(envoy_config(MEMBERS, **BINDS))
    command = [str(install()), "--mode", "validate", "--config-path", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "warning" not in checked.stderr, checked.stderr
