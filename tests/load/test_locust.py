"""Each kind of Locust user, run by `locust` on real servers."""

import csv
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import NamedTuple

import httpx
import pytest

from scripts.launch.server_process import ADDRESS, fill_ports
from scripts.launch.triton_server import TritonServer
from tests.gateway.gateway_process import GatewayProcess
from tests.load.servers import metronome_server

ROOT = Path(__file__).parents[2]
SECONDS = 60
FIRST_MS, GAP_MS = 200, 20
WORKLOAD = """
about: Short answers of few lengths.
seed: 1
slo: {ttft: 1.0, itl: 0.1}
streams:
  short:
    rate: 1.0
    tenants: {ann: 1}
    prompts: {distribution: fixed, tokens: 20}
    outputs: {distribution: uniform, low: 4, high: 8}
"""


@pytest.fixture(scope="module")
def metronome(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonServer]:
    with metronome_server(tmp_path_factory.mktemp("metronome"), first_ms=FIRST_MS, gap_ms=GAP_MS) as server:
        yield server


def command(folder: Path, locustfile: str, host: str, *more: str, workload: str = WORKLOAD) -> list[str]:
    """Four users who continue until they are stopped, and who write their files to a folder."""
    written = folder / "workload.yaml"
    written.write_text(workload)
    return [
        *(sys.executable, "-m", "locust", "-f", locustfile, "--host", host, "--workload", str(written)),
        *("--users", "4", "--spawn-rate", "4", "--run-time", f"{SECONDS}s", "--csv", str(folder / "run")),
        *("--gaps", str(folder / "gaps.jsonl"), *more),
    ]


class Ended(NamedTuple):
    code: int
    said: str


def locust(
    folder: Path,
    locustfile: str,
    host: str,
    *more: str,
    kinds: int = 1,
    min_answers: int = 4,
    workload: str = WORKLOAD,
) -> Ended:
    """Run Locust without its web page until its report has enough requests of each kind of user."""
    arguments = [*command(folder, locustfile, host, *more, workload=workload), "--headless", "--only-summary"]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            while process.poll() is None and not has_reported(folder, kinds, min_answers):
                time.sleep(0.1)
            process.terminate()
            said, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    return Ended(process.returncode, said)


def has_reported(folder: Path, kinds: int, min_answers: int) -> bool:
    """Whether the report, which may be half written, has enough requests."""
    report = folder / "run_stats.csv"
    fields = [line.split(",") for line in report.read_text().splitlines()] if report.exists() else []
    counts = [int(line[2]) for line in fields if line[1:2] == ["e2e"] and len(line) > 3]
    return len(counts) == kinds and min(counts) >= min_answers


def rows(folder: Path) -> dict[str, dict[str, str]]:
    """The rows of the report, by name."""
    with (folder / "run_stats.csv").open(newline="") as file:
        return {row["Name"]: row for row in csv.DictReader(file)}


def gaps(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "gaps.jsonl").read_text().splitlines()]


def check_rows(folder: Path, names: Sequence[str]) -> None:
    """Check that every answer has each of the rows, and a length from 4 to 8 tokens."""
    found = rows(folder)
    assert set(found) == {*names, "Aggregated"}
    count = int(found["e2e"]["Request Count"])
    assert count >= 4
    assert {int(found[name]["Request Count"]) for name in names} == {count}
    assert int(found["Aggregated"]["Failure Count"]) == 0
    # Locust draws its charts from this row. An answer is one request, however many rows it is in.
    assert {**found["Aggregated"], "Type": "", "Name": ""} == {**found["e2e"], "Type": "", "Name": ""}
    assert 4 <= float(found["tokens"]["Min Response Time"]) <= float(found["tokens"]["Max Response Time"]) <= 8
    # Locust writes its rows once a second, so the requests of the last second are missing.
    assert len(gaps(folder)) >= count


STREAMED = ("ttft", "itl", "e2e", "tokens")


@pytest.mark.parametrize("kind", ["grpc", "http"])
def test_users_of_triton_stream(tmp_path: Path, metronome: TritonServer, kind: str) -> None:
    locustfile, host = {
        "grpc": ("load_tests/locustfile.py", metronome.grpc_url),
        "http": ("load_tests/locust/http_user.py", f"http://{metronome.http_url}"),
    }[kind]
    run = locust(tmp_path, locustfile, host)
    assert run.code == 0, run.said
    check_rows(tmp_path, STREAMED)
    found = rows(tmp_path)
    assert {found[name]["Type"] for name in STREAMED} == {kind}
    assert float(found["ttft"]["Min Response Time"]) >= FIRST_MS
    assert float(found["itl"]["Average Response Time"]) == pytest.approx(GAP_MS, rel=0.5)
    # There is one gap less than tokens, because the metronome sends each token alone.
    assert all(len(line["gaps"]) == line["tokens"] - 1 for line in gaps(tmp_path))


def test_users_of_infer_get_whole_answers(tmp_path: Path, echo: TritonServer) -> None:
    run = locust(tmp_path, "load_tests/locust/infer_user.py", echo.http_url)
    assert run.code == 0, run.said
    check_rows(tmp_path, ("e2e", "tokens"))


def test_users_of_openai_stream_from_the_gateway(tmp_path: Path, gateway: GatewayProcess) -> None:
    run = locust(tmp_path, "load_tests/locust/openai_user.py", gateway.url, "--model", "llm")
    assert run.code == 0, run.said
    check_rows(tmp_path, STREAMED)


CHATS = """
about: Chats of three turns.
seed: 1
slo: {ttft: 1.0, itl: 0.1}
streams:
  chat:
    rate: 10.0
    prompts: {distribution: fixed, tokens: 8}
    outputs: {distribution: fixed, tokens: 1}
    chats: {turns: {distribution: fixed, tokens: 3}, think_seconds: 0, max_tokens: 64}
"""
WITHOUT_A_SERVER = """
import json
import sys

import gevent

from load_tests.locust.load_user import LoadUser


class Slow(LoadUser):
    kind = "slow"

    def answer(self, request, prompt):
        self.say(request, "sent")
        gevent.sleep(0.02)
        self.say(request, "answered")
        yield request.output_tokens

    def say(self, request, what):
        print(json.dumps([str(request.chat), id(self), what]), file=sys.stderr, flush=True)
"""


def test_one_user_has_a_chat_and_waits_for_each_answer(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(WITHOUT_A_SERVER)
    run = locust(tmp_path, str(tmp_path / "slow.py"), nowhere(), workload=CHATS, min_answers=30)
    assert run.code == 0, run.said
    chats: dict[str, list[tuple[int, str]]] = {}
    for line in run.said.splitlines():
        if line.startswith('["('):
            chat, user, what = json.loads(line)
            chats.setdefault(chat, []).append((user, what))
    assert max(map(len, chats.values())) == 6
    for seen in chats.values():
        assert len({user for user, _ in seen}) == 1
        assert [what for _, what in seen] == (["sent", "answered"] * 3)[: len(seen)]


def test_requests_that_the_end_cuts_off_are_in_the_log(tmp_path: Path) -> None:
    """A server that answers only some of its requests would look like a good one otherwise."""
    stuck = WITHOUT_A_SERVER.replace("gevent.sleep(0.02)", "gevent.sleep(0.02 if self._number else 1e6)")
    (tmp_path / "stuck.py").write_text(stuck)
    run = locust(tmp_path, str(tmp_path / "stuck.py"), nowhere(), workload=CHATS)
    assert run.code == 0, run.said
    assert "the end of the run cut off " in run.said
    assert " requests, which the report does not count; the longest had taken " in run.said


SLOW_TO_START = """
import time

import gevent
from locust import events

import load_tests.locust.load_user

gevent.sleep(0.001)
loop = gevent.get_hub().loop
begun = loop.now()
while time.time() < begun + 0.2:
    pass
events.init.fire(environment=None)
assert loop.now() >= begun + 0.2
"""


def test_the_time_to_start_is_no_part_of_the_run_time() -> None:
    """Without an iteration of its loop gevent's clock stands still, and timers count from there."""
    subprocess.run([sys.executable, "-c", SLOW_TO_START], cwd=ROOT, check=True)


def nowhere() -> str:
    """An address on which no server listens."""
    return f"{ADDRESS}:{fill_ports(None)[0]}"


def test_errors_of_all_kinds_of_users_are_counted_by_their_names(tmp_path: Path) -> None:
    errors = {
        "grpc": "TransportError",
        "http": "ConnectError",
        "infer": "ConnectionRefusedError",
        "openai": "ConnectError",
    }
    files = ",".join(f"load_tests/locust/{kind}_user.py" for kind in errors)
    run = locust(tmp_path, files, f"http://{nowhere()}", kinds=len(errors), min_answers=1)
    assert run.code == 1, run.said
    with (tmp_path / "run_failures.csv").open(newline="") as file:
        failures = list(csv.DictReader(file))
    assert {(row["Method"], row["Name"]): row["Error"] for row in failures} == {
        (kind, "e2e"): error for kind, error in errors.items()
    }
    assert len(failures) == len(errors)


def test_a_model_that_the_gateway_does_not_have_is_an_error(tmp_path: Path, gateway: GatewayProcess) -> None:
    run = locust(tmp_path, "load_tests/locust/openai_user.py", gateway.url, "--model", "other")
    assert run.code == 1, run.said
    assert "Status404" in (tmp_path / "run_failures.csv").read_text()
    assert run.said.count("the first Status404: the server answered 404: ") == 1


@contextmanager
def always(event: str) -> Iterator[str]:
    """The URL of a server that answers each request with an event of the stream, four times, and the end of it."""
    ending = json.dumps({"choices": [{"text": "", "finish_reason": "length"}], "usage": {"completion_tokens": 4}})

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.end_headers()
            time.sleep(GAP_MS / 1000)  # Thousands of requests would fill the pipe of Locust's log.
            self.wfile.write((f"data: {event}\n\n" * 4 + f"data: {ending}\n\n").encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer((ADDRESS, 0), Handler) as server, ThreadPoolExecutor(1) as thread:
        thread.submit(server.serve_forever)
        try:
            yield f"http://{ADDRESS}:{server.server_port}"
        finally:
            server.shutdown()


def test_characters_that_end_lines_only_elsewhere_are_parts_of_an_answer(tmp_path: Path) -> None:
    event = json.dumps({"choices": [{"text": "\x85 \u2028 \u2029", "finish_reason": None}]}, ensure_ascii=False)
    workload = WORKLOAD.replace("{distribution: uniform, low: 4, high: 8}", "{distribution: fixed, tokens: 4}")
    with always(event) as url:
        run = locust(tmp_path, "load_tests/locust/openai_user.py", url, workload=workload)
    assert run.code == 0, run.said
    check_rows(tmp_path, STREAMED)


def test_an_answer_that_cannot_be_read_is_a_failure(tmp_path: Path) -> None:
    with always('{"no": "choices"}') as url:
        run = locust(tmp_path, "load_tests/locust/openai_user.py", url, min_answers=1)
    assert run.code == 1, run.said
    assert "KeyError" in (tmp_path / "run_failures.csv").read_text()
    assert "the first KeyError: 'choices'" in run.said


def test_a_workload_that_makes_no_sense_is_refused_before_the_run(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(WORKLOAD.replace("rate: 1.0", "rate: 0"))
    run = locust(tmp_path, "load_tests/locustfile.py", nowhere(), "--workload", str(wrong))
    assert run.code == 2
    assert "streams.short.rate is 0: Input should be greater than 0" in run.said


def test_a_file_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    run = locust(tmp_path, "load_tests/locustfile.py", nowhere(), "--gaps", str(tmp_path / "no" / "gaps.jsonl"))
    assert run.code == 2
    assert "argument --gaps" in run.said
    assert "no file that can be written" in run.said


def test_a_master_sums_up_what_its_worker_does(tmp_path: Path, metronome: TritonServer) -> None:
    (port,) = fill_ports(None)
    there = ("--master-bind-host", ADDRESS, "--master-bind-port", str(port))
    worker = [sys.executable, "-m", "locust", "-f", "load_tests/locustfile.py", "--worker", "--master-port", str(port)]
    with subprocess.Popen(worker, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            master = ("--master", *there, "--expect-workers", "1")
            run = locust(tmp_path, "load_tests/locustfile.py", metronome.grpc_url, *master)
            said, _ = process.communicate(timeout=SECONDS)
        finally:
            process.kill()
    assert run.code == 0, run.said
    assert process.returncode == 0, said
    check_rows(tmp_path, STREAMED)


def test_the_web_page_shows_the_rows_while_it_runs(tmp_path: Path, metronome: TritonServer) -> None:
    (port,) = fill_ports(None)
    page = ("--autostart", "--web-host", ADDRESS, "--web-port", str(port))
    arguments = command(tmp_path, "load_tests/locustfile.py", metronome.grpc_url, *page)
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            shown = wait_for_rows(f"http://{ADDRESS}:{port}/stats/requests")
            process.terminate()
            process.wait(SECONDS)
        finally:
            process.kill()
    assert shown >= set(STREAMED)


def test_runs_that_the_web_page_starts_have_the_prompts_of_its_seed(tmp_path: Path) -> None:
    """The page sends each option as text, and empty text for an option without a value."""
    (tmp_path / "asked.py").write_text(WITHOUT_A_SERVER.replace("str(request.chat)", "request.seed"))
    (port,) = fill_ports(None)
    url = f"http://{ADDRESS}:{port}"
    arguments = command(tmp_path, str(tmp_path / "asked.py"), nowhere(), "--web-host", ADDRESS, "--web-port", str(port))
    firsts = []
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(arguments, cwd=ROOT, stderr=log) as process:
        try:
            for seed in ("", "7", "7", ""):
                begun = log.seek(0, 2)
                form = {"user_count": "1", "spawn_rate": "1", "host": url, "seed": seed}
                assert posted(f"{url}/swarm", form)["success"]
                firsts.append(first_asked(tmp_path / "log", begun))
                assert posted(f"{url}/stop", {})["success"]
            process.terminate()
            process.wait(SECONDS)
        finally:
            process.kill()
    assert firsts[1] == firsts[2]
    assert len({*firsts}) == 3


def posted(url: str, form: dict[str, str]) -> dict[str, object]:
    """Do what a button of the page does, as soon as there is a page."""
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            answer: dict[str, object] = httpx.post(url, data=form, timeout=SECONDS, trust_env=False).json()
            return answer
        except httpx.ConnectError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def first_asked(log: Path, begin: int) -> int:
    """The seed of the first request in a log after some place."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        for line in log.read_bytes()[begin:].decode().splitlines():
            if line.startswith("[") and line.endswith('"sent"]'):
                return int(json.loads(line)[0])
        time.sleep(0.1)
    pytest.fail(f"no request was sent; the log: {log.read_text()}")


def wait_for_rows(url: str) -> set[str]:
    """The names of the rows once there are any. After some time the latest state, even if it is empty."""
    names: set[str] = set()
    deadline = time.monotonic() + SECONDS
    while not names >= set(STREAMED) and time.monotonic() < deadline:
        time.sleep(0.1)
        try:
            names = {row["name"] for row in httpx.get(url, trust_env=False).json()["stats"]}
        except httpx.TransportError:  # It has not started yet.
            continue
    return names
