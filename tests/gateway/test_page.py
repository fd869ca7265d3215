"""The page at /ui: its files, and the stream of what it shows."""

import contextlib
import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from openai import OpenAI

from inflight_gateway.ui.events import MAX_VIEWERS
from scripts.launch.triton_server import TritonServer
from tests.eventually import eventually
from tests.gateway.gateway_process import CLIENT, GatewayProcess
from tests.gateway.test_keys import FILE

STATIC = CLIENT / "inflight_gateway" / "ui" / "static"
LONG: dict[str, Any] = {"model": "llm", "max_tokens": 1500, "extra_body": {"ignore_eos": True}, "stream": True}


@pytest.fixture(scope="module")
def page(drafting_server: TritonServer) -> Iterator[GatewayProcess]:
    with GatewayProcess(drafting_server.grpc_url, f"--metrics-url={drafting_server.metrics_url}") as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@pytest.fixture(scope="module")
def guarded(drafting_server: TritonServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(FILE)
    arguments = (f"--metrics-url={drafting_server.metrics_url}", "--api-keys", str(path))
    with GatewayProcess(drafting_server.grpc_url, *arguments) as gateway:
        gateway.wait_for(["/health"], 30)
        yield gateway


@contextlib.contextmanager
def watching(gateway: GatewayProcess, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    """The frames that a viewer gets."""
    with httpx.stream("GET", f"{gateway.url}/ui/events", headers=headers, timeout=30) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line.removeprefix("data: ")) for line in response.iter_lines() if line)


def next_running(frames: Iterator[dict[str, Any]]) -> dict[str, Any]:
    """The next frame that counts a running request. The list of requests is newer than their number."""
    return next(frame for frame in frames if frame["running"])


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def test_the_page_needs_no_other_host_and_no_inline_script(page: GatewayProcess) -> None:
    answer = httpx.get(f"{page.url}/ui")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert answer.headers["content-security-policy"].startswith("default-src 'self';")
    assert not re.search(r"<script(?![^>]* src=)|<style| style=| on\w+=", answer.text)
    for name in re.findall(r'(?:src|href)="ui/([^"]+)"', answer.text):
        assert httpx.get(f"{page.url}/ui/{name}").status_code == 200
    for file in STATIC.iterdir():
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|innerHTML|outerHTML", file.read_text())
    assert httpx.get(f"{page.url}/ui/", follow_redirects=True).text == answer.text


@pytest.mark.parametrize("name", ["nothing.js", "..%2fpage.py", "%2e%2e/page.py", "/etc/passwd"])
def test_files_that_are_not_the_pages(page: GatewayProcess, name: str) -> None:
    assert httpx.get(f"{page.url}/ui/{name}").status_code == 404


def test_frames_show_what_runs(page: GatewayProcess) -> None:
    with page.openai() as client, client.completions.create(prompt="One, two,", user="acme", **LONG) as stream:
        next(stream)
        with watching(page) as frames:
            frame = next_running(frames)
            (request,) = frame["requests"]
            assert (request["tenant"], request["running"], request["priority"]) == ("acme", True, 0)
            assert request["prompt_tokens"] == request["computed_prompt_tokens"] > 0
            assert (frame["model"], frame["running"], frame["waiting"], frame["max_num_seqs"]) == ("llm", 1, 0, 64)
            assert 0 < frame["kv_cache_usage"] < 1
            later = next(each for each in frames if any(each["points"]["decode_tokens_per_step"]))
            assert later["requests"][0]["output_tokens"] > request["output_tokens"]
            assert 0 < later["points"]["decode_tokens_per_step"][-1] <= 5
            assert later["points"]["generated_tokens_per_second"][-1] > 0
            known = later["points"]["time"]
            newer = next(each for each in frames if each["points"]["time"])
            assert min(newer["points"]["time"]) > max(known)
        with watching(page) as frames:  # Another viewer gets what is known.
            assert set(known) <= set(next(frames)["points"]["time"])
    with watching(page) as frames:
        # The list of requests is newer than the number of those that run.
        assert any(not frame["requests"] and frame["running"] == 0 for frame in frames)


def test_with_keys_a_viewer_sees_its_own_requests_and_the_number_of_others(guarded: GatewayProcess) -> None:
    assert httpx.get(f"{guarded.url}/ui").status_code == 200
    assert httpx.get(f"{guarded.url}/ui/events").status_code == 401
    assert httpx.get(f"{guarded.url}/ui/events", headers=bearer("wrong")).status_code == 401
    with guarded.openai("secret-a") as client, client.completions.create(prompt="One, two,", **LONG) as stream:
        next(stream)
        with watching(guarded, **bearer("secret-a")) as frames:
            frame = next(frames)
        assert [request["tenant"] for request in frame["requests"]] == ["a"]
        assert frame["others"] == {"running": 0, "waiting": 0}
        name = frame["requests"][0]["name"]
        with watching(guarded, **bearer("secret-b")) as frames:
            frame = next_running(frames)
        assert (frame["requests"], frame["others"]) == ([], {"running": 1, "waiting": 0})
        assert frame["running"] == 1
        assert name not in json.dumps(frame)


@pytest.mark.parametrize(("host", "status"), [("evil.example", 403), ("10.0.0.1:9000", 403), ("[::1]:9000", 200)])
def test_without_keys_a_name_that_points_here_is_refused(page: GatewayProcess, host: str, status: int) -> None:
    with httpx.stream("GET", f"{page.url}/ui/events", headers={"host": host}) as response:
        assert response.status_code == status


def test_too_many_viewers(page: GatewayProcess) -> None:
    def status() -> int:
        with httpx.stream("GET", f"{page.url}/ui/events") as response:
            return response.status_code

    with contextlib.ExitStack() as stack:
        viewers = [stack.enter_context(watching(page)) for _ in range(MAX_VIEWERS)]
        for frames in viewers:
            next(frames)
        assert status() == 429
    assert eventually(lambda: status() == 200)


def test_a_model_without_such_metrics(gateway: GatewayProcess, client: OpenAI) -> None:
    client.completions.create(model="llm", prompt="one")
    with watching(gateway) as frames:
        assert next(frames)["problem"] == "the model has no metric inflight:last_update_time_seconds"


def test_a_viewer_does_not_keep_the_gateway_from_ending(server: TritonServer) -> None:
    ended = threading.Event()
    with GatewayProcess(server.grpc_url) as gateway:
        gateway.wait_for(["/health"], 30)
        with watching(gateway) as frames:
            next(frames)
            os.kill(gateway.pid, signal.SIGTERM)
            assert all("problem" in frame for frame in frames)  # The stream comes to an orderly end.
        threading.Thread(target=lambda: (gateway.wait(), ended.set())).start()
        assert ended.wait(10)
