"""What `make serve` rejects before it starts anything, and how it ends."""

import contextlib
import copy
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from scripts.launch.errors import LauncherError
from scripts.launch.model_repository import MODEL_REPOSITORY
from scripts.launch.serve import ServeSettings, read_settings, resolve_model
from scripts.launch.server_process import ADDRESS, fill_ports
from scripts.launch.triton_runtime import triton_runtime
from scripts.launch.triton_server import SHARED_MEMORY
from scripts.reference.tiny_models import SERVED, save_model
from tests.eventually import eventually
from tests.processes import children, is_model

READY_SECONDS = 60


@pytest.fixture
def ports() -> dict[str, str]:
    return dict(zip(("HTTP_PORT", "GRPC_PORT", "METRICS_PORT"), map(str, fill_ports(None, None, None)), strict=True))


def test_settings_come_from_the_environment(ports: dict[str, str]) -> None:
    environment = {**ports, "MODEL": "", "ARGS": "--log-verbose=1 --trace-config 'mode=triton'"}
    numbers = [int(port) for port in ports.values()]
    assert read_settings(environment) == ServeSettings(
        *numbers, model=None, arguments=["--log-verbose=1", "--trace-config", "mode=triton"]
    )


@pytest.mark.parametrize("name", ["HTTP_PORT", "GRPC_PORT", "METRICS_PORT"])
def test_a_taken_port_is_named_with_its_variable(ports: dict[str, str], name: str) -> None:
    with socket.socket() as taken:
        taken.bind((ADDRESS, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(LauncherError, match=rf"port {port} .*set {name}"):
            read_settings({**ports, name: str(port)})


@pytest.mark.parametrize("text", ["0", "65536", "-1", "http", "80.5"])
def test_a_port_is_a_number_in_range(ports: dict[str, str], text: str) -> None:
    with pytest.raises(LauncherError, match="GRPC_PORT must be a whole number from 1 to 65535"):
        read_settings({**ports, "GRPC_PORT": text})


def test_two_endpoints_cannot_share_a_port(ports: dict[str, str]) -> None:
    with pytest.raises(LauncherError, match="HTTP_PORT and METRICS_PORT are both"):
        read_settings({**ports, "METRICS_PORT": ports["HTTP_PORT"]})


@pytest.mark.parametrize("key", ["se cret", "secr\u00e9t", "secret\n", "secret\udcff"])
def test_a_key_that_no_header_can_hold_is_refused(ports: dict[str, str], key: str) -> None:
    with pytest.raises(LauncherError, match="OPERATOR_KEY must consist of printable ASCII") as refused:
        read_settings({**ports, "OPERATOR_KEY": key})
    assert "secr" not in str(refused.value)


def test_unbalanced_quotes_are_refused(ports: dict[str, str]) -> None:
    with pytest.raises(LauncherError, match="ARGS="):
        read_settings({**ports, "ARGS": "--name 'half"})


@pytest.mark.parametrize(
    "arguments",
    [
        "--http-address=0.0.0.0",
        "--http-address 0.0.0.0",
        "--grpc-address=::",
        "--metrics-address=example.org",
        "--log-verbose=1 --grpc-addr=10.0.0.1",
        "--http-address",
        "--http-address=127.0.0.1 --http-address=0.0.0.0",
        "--allow-sagemaker=true",
        "--allow-vertex-ai=true",
    ],
)
def test_other_hosts_do_not_reach_a_triton_with_known_holes(ports: dict[str, str], arguments: str) -> None:
    with pytest.raises(LauncherError, match=r"ARGS has --.*24\.10, has known holes.*ALLOW_EXPOSED_TRITON=1"):
        read_settings({**ports, "ARGS": arguments})
    assert read_settings({**ports, "ARGS": arguments, "ALLOW_EXPOSED_TRITON": "1"}).arguments == arguments.split()


@pytest.mark.parametrize("arguments", ["--http-address=127.0.0.2", "--grpc-address ::1", "--http-port=1", "-- a"])
def test_loopback_addresses_are_accepted(ports: dict[str, str], arguments: str) -> None:
    assert read_settings({**ports, "ARGS": arguments}).arguments == arguments.split()


def test_a_missing_folder_is_refused_and_a_hub_id_is_not(tmp_path: Path) -> None:
    for path in (str(tmp_path / "absent"), "./absent", "~/absent", "a/b/absent"):
        with pytest.raises(LauncherError, match="no such folder"):
            resolve_model(path)
    assert resolve_model("organisation/model-1.5B") == "organisation/model-1.5B"


def test_a_model_folder_needs_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LauncherError, match=r"no config\.json"):
        resolve_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.chdir(tmp_path.parent)
    assert resolve_model(tmp_path.name) == str(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    assert resolve_model(str(tmp_path / "link")) == str(tmp_path / "link")


def test_errors_end_with_one_line_and_a_status(ports: dict[str, str]) -> None:
    command = [sys.executable, "-m", "scripts.launch.serve"]
    environment = {**os.environ, **ports, "MODEL": "./absent"}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    assert run.stderr == "error: MODEL=./absent: there is no such folder\n"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ("--http-port=8100", "ARGS has --http-port=8100; set HTTP_PORT instead"),
        (
            "--http-address 127.0.0.2",
            "ARGS has --http-address 127.0.0.2; it must be one of 127.0.0.1, localhost, 0.0.0.0",
        ),
    ],
)
def test_a_server_that_could_never_be_asked_whether_it_is_ready_does_not_start(
    ports: dict[str, str], arguments: str, says: str
) -> None:
    command = [sys.executable, "-m", "scripts.launch.serve"]
    environment = {**os.environ, **ports, "ARGS": arguments}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stdout, run.stderr) == (1, "", f"error: {says}\n")


def test_a_cache_that_cannot_be_used_ends_with_one_line_too(ports: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / triton_runtime().root.name).symlink_to(triton_runtime().root)
    (tmp_path / "ports").touch()
    (tmp_path / "config.json").touch()
    command = [sys.executable, "-m", "scripts.launch.serve"]
    environment = {**os.environ, **ports, "MODEL": str(tmp_path), "INFLIGHT_CACHE": str(tmp_path)}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=30, check=False)
    assert (run.returncode, run.stdout) == (1, "")
    says = f"a file in the cache folder, INFLIGHT_CACHE, cannot be used: [Errno 17] File exists: '{tmp_path}/ports'"
    assert run.stderr == f"error: {says}\n"


PROGRAM = "import sys, pathlib; from scripts.launch.serve import main; sys.exit(main(pathlib.Path(sys.argv[1])))"


Launch = Callable[..., tuple["subprocess.Popen[str]", list[str]]]


@pytest.fixture
def launch(ports: dict[str, str]) -> Iterator[Launch]:
    """Starts the launcher over a repository. Returns it with its output up to the ready line."""
    with contextlib.ExitStack() as launchers:

        def start(repository: Path, model: str = "echo") -> tuple["subprocess.Popen[str]", list[str]]:
            command = [sys.executable, "-c", PROGRAM, str(repository)]
            environment = {**os.environ, **ports, "MODEL": model, "ARGS": ""}
            launcher = launchers.enter_context(
                subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            )
            # If the test fails. Its server ends with it.
            launchers.callback(launcher.kill)
            assert launcher.stdout is not None
            lines = []
            for line in launcher.stdout:
                lines.append(line)
                if line.startswith("Ready:"):
                    break
            return launcher, lines

        yield start


def test_ctrl_c_ends_a_served_model_in_order(repository: Path, ports: dict[str, str], launch: Launch) -> None:
    launcher, lines = launch(repository)
    assert f"curl -N {ADDRESS}:{ports['HTTP_PORT']}/v2/models/llm/generate_stream" in lines[-1]
    # The output has the model's lines, but not the server's tables.
    assert any("the model speaks" in line for line in lines)
    assert "plain output\n" in lines
    assert not any(line.startswith(("+", "|")) for line in lines)
    launcher.send_signal(signal.SIGINT)
    output, _ = launcher.communicate(timeout=30)
    assert "Finishing running requests" in output
    assert launcher.returncode == 0
    assert list(SHARED_MEMORY.glob(f"inflight_{launcher.pid}_*")) == []


def test_a_second_ctrl_c_stops_at_once(repository: Path, ports: dict[str, str], launch: Launch) -> None:
    launcher, _ = launch(repository)
    assert launcher.stdout is not None
    client = http.client.HTTPConnection(ADDRESS, int(ports["HTTP_PORT"]))
    client.request("POST", "/v2/models/llm/generate", '{"text_input": "600"}')
    assert any("taking up a request" in line for line in launcher.stdout)
    launcher.send_signal(signal.SIGINT)
    assert any("Finishing running requests" in line for line in launcher.stdout)
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=10)
    client.close()
    assert launcher.returncode == 130
    assert list(SHARED_MEMORY.glob(f"inflight_{launcher.pid}_*")) == []


def test_new_connections_are_answered_until_load_balancers_know_of_the_end(
    repository: Path, ports: dict[str, str], launch: Launch
) -> None:
    code = repository / "llm/1/model.py"
    code.write_text(code.read_text().replace("text.as_numpy()[0]", "text.as_numpy()[0] or 0"))
    launcher, _ = launch(repository)
    launcher.send_signal(signal.SIGTERM)
    # The model is told to drain. Without a pause, Triton would get its signal within milliseconds.
    output_up_to(launcher, "taking up a request")
    for _ in range(10):
        time.sleep(0.05)
        assert httpx.get(f"http://{ADDRESS}:{ports['HTTP_PORT']}/v2/health/live", timeout=30).status_code == 200
    launcher.communicate(timeout=30)
    assert launcher.returncode == 0


def test_without_a_reader_of_its_output_running_requests_finish(
    repository: Path, ports: dict[str, str], launch: Launch
) -> None:
    """As when the terminal is closed."""
    launcher, _ = launch(repository)
    assert launcher.stdout is not None
    with contextlib.closing(http.client.HTTPConnection(ADDRESS, int(ports["HTTP_PORT"]))) as client:
        client.request("POST", "/v2/models/llm/generate", '{"text_input": "1"}')
        assert any("taking up a request" in line for line in launcher.stdout)
        launcher.stdout.close()
        launcher.send_signal(signal.SIGTERM)
        answer = client.getresponse()
        assert (answer.status, json.loads(answer.read())["text_output"]) == (200, "1")
    launcher.wait(30)


def test_without_a_reader_of_its_output_a_server_is_started_again(
    repository: Path, ports: dict[str, str], launch: Launch
) -> None:
    launcher, _ = launch(repository)
    assert launcher.stdout is not None
    launcher.stdout.close()
    (first,) = children(launcher.pid)
    first.send(signal.SIGKILL)
    url = f"http://{ADDRESS}:{ports['HTTP_PORT']}/v2/models/llm/ready"

    def is_back() -> bool:
        found = children(launcher.pid)
        try:
            return found != [] and found[0].pid != first.pid and httpx.get(url).status_code == 200
        except httpx.TransportError:
            return False

    assert eventually(is_back, READY_SECONDS)
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(30)


def output_up_to(launcher: "subprocess.Popen[str]", start: str) -> list[str]:
    """Return the launcher's further output up to a line that begins so."""
    assert launcher.stdout is not None
    lines = []
    for line in launcher.stdout:
        lines.append(line)
        if line.startswith(start):
            return lines
    raise AssertionError(f"no line {start!r} in {lines}")


def test_a_signal_between_two_starts_ends_the_launcher(repository: Path, launch: Launch) -> None:
    launcher, _ = launch(repository)
    children(launcher.pid)[0].send(signal.SIGKILL)
    output_up_to(launcher, "Starting it again")
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=30)
    assert launcher.returncode == 0


def test_a_model_that_cannot_be_loaded_is_not_tried_again(repository: Path, ports: dict[str, str]) -> None:
    (repository / "llm/1/model.py").write_text("raise RuntimeError('no such luck')")
    command = [sys.executable, "-c", PROGRAM, str(repository)]
    environment = {**os.environ, **ports, "MODEL": "echo", "ARGS": ""}
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "error: tritonserver exited with code 1 before it was ready" in run.stderr
    assert "again" not in run.stdout


def test_a_served_model_that_dies_answers_the_same_afterwards(
    tmp_path: Path, ports: dict[str, str], launch: Launch
) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    url = f"http://{ADDRESS}:{ports['HTTP_PORT']}/v2/models/llm/generate"
    body = {"input_ids": [5, 6, 7], "max_tokens": 8, "ignore_eos": True, "return_token_ids": True}
    launcher, _ = launch(MODEL_REPOSITORY, str(tmp_path))
    before = httpx.post(url, json=body, timeout=60).json()["token_ids"]
    (server,) = children(launcher.pid)
    model = next(child for child in children(server.pid) if is_model(child, "llm"))
    model.send(signal.SIGKILL)
    report = output_up_to(launcher, "Ready:")
    assert "guardian] the process of the model 'llm' has died" in "".join(report)
    assert "error: tritonserver was ended by SIGKILL. Its last lines:\n" in report
    assert "Starting it again in 0.25 s\n" in report
    assert httpx.post(url, json=body, timeout=60).json()["token_ids"] == before
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=60)
    assert launcher.returncode == 0
    assert list(SHARED_MEMORY.glob(f"inflight_{launcher.pid}_*")) == []


@pytest.mark.slow
def test_a_killed_launcher_takes_all_with_it_and_can_be_started_again(
    tmp_path: Path, ports: dict[str, str], launch: Launch
) -> None:
    config = copy.deepcopy(SERVED["llama"].config)
    config.max_position_embeddings = 16_384
    save_model(config, tmp_path)
    url = f"http://{ADDRESS}:{ports['HTTP_PORT']}/v2/models/llm"
    body = {"input_ids": [5, 6, 7], "ignore_eos": True, "return_token_ids": True}
    launcher, _ = launch(MODEL_REPOSITORY, str(tmp_path))
    before = httpx.post(f"{url}/generate", json={**body, "max_tokens": 8}, timeout=60).json()["token_ids"]
    running = psutil.Process(launcher.pid).children(recursive=True)
    endless = {**body, "max_tokens": 16_000, "stream": True}
    with httpx.stream("POST", f"{url}/generate_stream", json=endless, timeout=60) as answer:
        lines = answer.iter_lines()
        assert '"token_ids"' in next(lines)
        launcher.kill()
        with pytest.raises(httpx.TransportError):
            list(lines)
    launcher.communicate(timeout=10)
    _, alive = psutil.wait_procs(running, timeout=10)
    assert alive == []
    assert list(SHARED_MEMORY.glob(f"inflight_{launcher.pid}_*")) == []
    launcher, _ = launch(MODEL_REPOSITORY, str(tmp_path))
    with httpx.Client(timeout=60) as client:
        assert client.post(f"{url}/generate", json={**body, "max_tokens": 8}).json()["token_ids"] == before
        launcher.send_signal(signal.SIGINT)
        # The client's connection stays open. Triton alone would wait for it, for 30 s.
        launcher.communicate(timeout=25)
    assert launcher.returncode == 0
