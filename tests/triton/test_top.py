"""`inflight top` with a server under load."""

import contextlib
import re
from collections.abc import Iterator

import pytest
from rich.console import Console

from inflight_cli.screen import screen
from inflight_client import Client, TextStream, Timeouts, UnfinishedRequest
from inflight_client.load import Load, Reading, Turnover, load, turnover
from scripts.launch.triton_server import TritonServer
from tests.cli.program import SECONDS, Program, Terminal
from tests.eventually import eventually
from tests.triton.prometheus import at_rest, scrape, scrape_when

REQUESTS = 6
TOKENS = 40


@pytest.fixture
def client(server: TritonServer) -> Iterator[Client]:
    with Client(server.grpc_url, metrics_url=server.metrics_url, timeouts=Timeouts(total=SECONDS)) as client:
        yield client


@contextlib.contextmanager
def running(client: Client, count: int) -> Iterator[list[TextStream]]:
    """Start requests that run until the end of the block."""
    with contextlib.ExitStack() as stack:
        streams = [
            stack.enter_context(client.stream("One two three", max_tokens=1500, ignore_eos=True)) for _ in range(count)
        ]
        for stream in streams:
            next(stream)
        yield streams


def reading(client: Client, seconds: float) -> Reading:
    return Reading(seconds, client.metrics(), "llm")


def test_figures_of_a_known_load(server: TritonServer, client: Client) -> None:
    scrape_when(server, at_rest)
    before = reading(client, 100.0)
    prompts = ["The sky is"] * REQUESTS
    answers = client.generate_many(prompts, max_tokens=TOKENS, ignore_eos=True, temperature=0)
    scrape_when(server, at_rest)
    after = reading(client, 110.0)

    found = load(before, after)
    prompt_tokens = sum(answer.usage.prompt_tokens for answer in answers)
    assert (found.running, found.waiting) == (0, 0)
    assert found.generated_tokens_per_second == REQUESTS * TOKENS / 10
    assert found.prompt_tokens_per_second == prompt_tokens / 10
    assert found.finished_per_second == REQUESTS / 10
    assert found.refused_per_second == 0
    assert (found.blocks_used, found.blocks) == (0, 384)
    assert found.step_fill is not None
    assert 0 < found.step_fill < 1
    for latency in (found.first_token, found.inter_token, found.queue):
        assert latency.p50 is not None
        assert latency.p95 is not None
        assert latency.p99 is not None
        assert 0 < latency.p50 <= latency.p95 <= latency.p99
    assert turnover(before, after) == Turnover(running=0, joined=REQUESTS, left=REQUESTS)


def test_once_prints_what_runs(server: TritonServer, client: Client) -> None:
    scrape_when(server, at_rest)
    with running(client, 3):
        assert eventually(lambda: scrape(server).get("num_requests_running") == 3)
        listed = client.unfinished_requests()
        done = Program(server.grpc_url).run("top", "--once", "--metrics-url", server.metrics_url)
    assert (done.returncode, done.stderr) == (0, "")
    shown, _, table = done.stdout.partition("\n\n")
    names = {line.split("\t")[0] for line in table.splitlines()[1:]}
    assert names == {request.request_id for request in listed}
    assert len(names) == 3
    figures = dict(line.split() for line in shown.splitlines())
    assert (figures["running"], figures["waiting"], figures["max_num_seqs"]) == ("3", "0", "64")
    assert float(figures["generated_tokens_per_second"]) > 0
    assert 0 < float(figures["kv_cache_usage"]) < 1
    assert figures["finished_per_second"] == "0"


@pytest.mark.parametrize(("width", "height", "columns"), [(80, 24, 13), (200, 50, 37)])
def test_screen_fills_the_terminal_and_no_more(client: Client, width: int, height: int, columns: int) -> None:
    now = client.metrics()
    figures: Load = load(Reading(0.0, now, "llm"), Reading(1.0, now, "llm"))
    history = [Turnover(running=number % 65, joined=number % 7, left=number % 5) for number in range(100)]
    requests = [UnfinishedRequest(f"[bold]{number}", "a\ttenant" * 30, number, number) for number in range(100)]
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as capture:
        console.print(screen(figures, history, requests, 64, console.size))
    lines = capture.get().splitlines()
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines)
    assert any("[bold]0" in line for line in lines) == (height == 50)
    # The chart shows the newest values, on the right.
    *_, numbers = (line for line in lines if line.startswith("│ running"))
    assert [int(text) for text in re.findall(r"\d+", numbers)] == [turn.running for turn in history[-columns:]]


def test_view_in_a_terminal_until_ctrl_c(server: TritonServer) -> None:
    with Terminal(Program(server.grpc_url), "top", "--metrics-url", server.metrics_url) as terminal:
        terminal.read_until("joined")
        terminal.press_ctrl_c()
        # The program leaves the alternate screen, which restores the terminal.
        terminal.read_until("\x1b[?1049l")
        assert terminal.process.wait(SECONDS) == 130
