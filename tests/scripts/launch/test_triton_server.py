"""A real server starts, answers, stops, and leaves neither a process nor shared memory behind."""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from scripts.launch.errors import LauncherError
from scripts.launch.triton_server import SHARED_MEMORY, TritonServer

READY_SECONDS = 60


def regions_of(prefix: str) -> list[str]:
    """Shared memory regions of a server or, with the prefix `inflight_PID_`, of all servers of a launcher."""
    return [path.name for path in SHARED_MEMORY.glob(f"{prefix}*")]


def running(group: int) -> list[str]:
    listing = subprocess.run(["ps", "-eo", "pgid=,stat=,args="], capture_output=True, text=True, check=True)
    processes = (line.split(maxsplit=2) for line in listing.stdout.splitlines())
    return [" ".join(fields) for fields in processes if int(fields[0]) == group and fields[1][0] != "Z"]


def ask(server: TritonServer, text: str) -> str:
    body = json.dumps({"text_input": text}).encode()
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{server.http_url}/v2/models/llm/generate", body, timeout=20) as answer:
        return str(json.load(answer)["text_output"])


def test_a_stopped_server_leaves_nothing(repository: Path) -> None:
    lines: list[str] = []
    with TritonServer(repository, log=lines.append) as server:
        server.wait_ready(READY_SECONDS, ["llm"])
        group = server.pid
        assert len(running(group)) == 2
        assert len(regions_of(server.region_prefix)) == 1
        assert ask(server, "0") == "0"
    assert running(group) == []
    assert regions_of(server.region_prefix) == []
    assert any("the model speaks" in line for line in lines)


def test_stopping_one_server_leaves_another_alone(repository: Path) -> None:
    with TritonServer(repository) as stays:
        stays.wait_ready(READY_SECONDS, ["llm"])
        with TritonServer(repository) as goes:
            goes.wait_ready(READY_SECONDS, ["llm"])
        assert len(regions_of(stays.region_prefix)) == 1
        assert regions_of(goes.region_prefix) == []
        assert ask(stays, "0") == "0"


def test_a_stop_lets_a_running_request_finish(repository: Path) -> None:
    answers: list[str] = []
    taken_up = threading.Event()

    def log(line: str) -> None:
        if "taking up a request" in line:
            taken_up.set()

    with TritonServer(repository, drain_seconds=10, log=log) as server:
        server.wait_ready(READY_SECONDS, ["llm"])
        client = threading.Thread(target=lambda: answers.append(ask(server, "1.5")))
        client.start()
        assert taken_up.wait(timeout=READY_SECONDS)
    client.join(timeout=10)
    assert answers == ["1.5"]


def test_a_drained_server_stops_with_its_http_threads_still_at_work(repository: Path) -> None:
    lines: list[str] = []
    with TritonServer(repository, log=lines.append) as server:
        server.wait_ready(READY_SECONDS, ["llm"])
        server.drain("llm")
    told = "".join(lines).partition("Signal (15) received")[2]
    assert "Found 1 HTTP service connections" in told
    assert "successfully unloaded 'llm' version 1" in told


def test_a_request_that_does_not_finish_is_cut_off(repository: Path) -> None:
    taken_up = threading.Event()

    def log(line: str) -> None:
        if "taking up a request" in line:
            taken_up.set()

    failures: list[Exception] = []

    def give_up() -> None:
        try:
            ask(server, "600")
        except OSError as error:
            failures.append(error)

    with TritonServer(repository, drain_seconds=1, log=log) as server:
        server.wait_ready(READY_SECONDS, ["llm"])
        client = threading.Thread(target=give_up)
        client.start()
        assert taken_up.wait(timeout=READY_SECONDS)
        group = server.pid
        started = time.monotonic()
    assert time.monotonic() - started < 15
    client.join(timeout=10)
    assert len(failures) == 1
    assert running(group) == []
    assert regions_of(server.region_prefix) == []


def test_a_stop_cleans_up_after_a_crash(repository: Path) -> None:
    with TritonServer(repository) as server:
        server.wait_ready(READY_SECONDS, ["llm"])
        group = server.pid
        os.killpg(group, signal.SIGKILL)
        assert server.wait() == "was ended by SIGKILL"
        assert len(regions_of(server.region_prefix)) == 1
    assert running(group) == []
    assert regions_of(server.region_prefix) == []


def test_a_server_that_cannot_start_says_why_at_once(repository: Path) -> None:
    (repository / "llm/1/model.py").write_text("raise RuntimeError('no such luck')")
    with TritonServer(repository) as server:
        started = time.monotonic()
        with pytest.raises(LauncherError, match=r"(?s)exited with code 1 before it was ready.*no such luck"):
            server.wait_ready(READY_SECONDS, ["llm"])
    assert time.monotonic() - started < READY_SECONDS / 2


def test_a_server_that_is_not_ready_in_time_is_reported(repository: Path) -> None:
    with (
        TritonServer(repository, drain_seconds=1) as server,
        pytest.raises(LauncherError, match="not ready after"),
    ):
        server.wait_ready(2, ["no_such_model"])


class HangsWhileDying(TritonServer):
    """What a tritonserver does whose memory is corrupt, when it writes its last words."""

    def _launch(self) -> tuple[list[str], dict[str, str]]:
        return ["sh", "-c", "echo 'Signal (6) received.'; sleep 300"], dict(os.environ)


def test_a_server_that_hangs_while_it_dies_is_ended(tmp_path: Path) -> None:
    with HangsWhileDying(tmp_path) as server:
        assert server.wait() == "was ended by SIGKILL"


def test_a_signal_to_stop_gives_a_server_its_time(tmp_path: Path) -> None:
    server = TritonServer(tmp_path)
    fatal = [number for number in range(1, 32) if server._is_last_word(f"Signal ({number}) received.\n")]
    assert fatal == [signal.SIGILL, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGSEGV]


RUNNING = 'inflight:num_requests_running{instance="llm_0_0",model="llm",version="1"} 2\n'
WAITING = 'inflight:num_requests_waiting{instance="llm_0_0",model="llm",version="1"} 1\n'
PENDING = 'nv_inference_pending_request_count{model="%s",version="1"} 0\n'


@pytest.mark.parametrize(
    ("metrics", "count"),
    [
        (PENDING % "llm" + PENDING % "completion" + RUNNING + WAITING, 3),
        (PENDING % "llm" + RUNNING.replace(" 2", " 0"), 0),
        (PENDING % "llm" + PENDING % "somebody_elses" + RUNNING, None),
        ("", None),
    ],
)
def test_requests_are_counted_where_all_models_tell(tmp_path: Path, metrics: str, count: int | None) -> None:
    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(metrics.encode())

    with HTTPServer(("127.0.0.1", 0), Metrics) as endpoint:
        threading.Thread(target=endpoint.handle_request).start()
        assert TritonServer(tmp_path, metrics_port=endpoint.server_port)._num_requests() == count
