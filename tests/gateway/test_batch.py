"""`inflight batch` with lines of OpenAI's Batch API."""

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from scripts.launch.server_process import fill_ports
from scripts.launch.triton_server import TritonServer
from tests.cli.program import Program
from tests.gateway.gateway_process import GatewayProcess


class Batch:
    """A batch in a folder of its own, whose lines go to one gateway."""

    def __init__(self, folder: Path, server: TritonServer, gateway_url: str, **environment: str) -> None:
        self._input, self._output = folder / "in.jsonl", folder / "out.jsonl"
        self._program = Program(server.grpc_url, INFLIGHT_GATEWAY=gateway_url, **environment)

    def run(self, *options: str, lines: list[Any] | None = None) -> tuple[int, str]:
        """Return the exit status and what is on standard error. Without `lines`, those of the last run remain."""
        if lines is not None:
            self._input.write_text("".join(json.dumps(line) + "\n" for line in lines))
        done = self._program.run("batch", str(self._input), str(self._output), *options)
        assert done.stdout == ""
        return done.returncode, done.stderr

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._output.read_text().splitlines()]


@pytest.fixture
def batch(tmp_path: Path, server: TritonServer, gateway: GatewayProcess) -> Batch:
    return Batch(tmp_path, server, gateway.url)


def line(name: str, endpoint: str, **body: Any) -> dict[str, Any]:
    return {"custom_id": name, "method": "POST", "url": f"/v1/{endpoint}", "body": {"model": "llm", **body}}


def test_each_endpoint_answers_in_the_form_of_the_batch_api(batch: Batch) -> None:
    lines = [
        line("slow", "chat/completions", messages=[{"role": "user", "content": "!gap 100 a b"}], max_tokens=3),
        line("text", "completions", prompt="c d", max_tokens=1),
        line("vector", "embeddings", input="one two three"),
        line("response", "responses", input="e f"),
        {"id": "own", "prompt": "g"},
    ]
    assert batch.run(lines=lines) == (0, "")
    *passed_on, own = batch.answers()
    assert [(answer["custom_id"], answer["index"]) for answer in passed_on] == [
        ("slow", 0),
        ("text", 1),
        ("vector", 2),
        ("response", 3),
    ]
    assert len({answer["id"] for answer in passed_on}) == 4
    assert [answer["error"] for answer in passed_on] == [None] * 4
    assert all(answer["response"]["status_code"] == 200 for answer in passed_on)
    assert all(answer["response"]["request_id"] for answer in passed_on)
    chat, text, vector, response = (answer["response"]["body"] for answer in passed_on)
    assert (chat["object"], chat["choices"][0]["message"]["content"]) == ("chat.completion", "a b ")
    assert (text["choices"][0]["text"], text["choices"][0]["finish_reason"]) == ("c ", "length")
    assert vector["data"][0]["object"] == "embedding"
    assert response["output"][0]["content"][0]["text"] == "e f "
    assert (own["id"], own["text"]) == ("own", "g ")


def test_the_address_may_be_that_of_openais_clients(
    tmp_path: Path, server: TritonServer, gateway: GatewayProcess
) -> None:
    batch = Batch(tmp_path, server, f"{gateway.url}/v1/")
    assert batch.run(lines=[line("a", "completions", prompt="x", max_tokens=1)]) == (0, "")
    assert batch.answers()[0]["response"]["status_code"] == 200


def test_a_proxy_is_not_asked_for_a_gateway_on_this_host(
    tmp_path: Path, server: TritonServer, gateway: GatewayProcess
) -> None:
    (nobody,) = fill_ports(None)
    batch = Batch(tmp_path, server, gateway.url, http_proxy=f"http://127.0.0.1:{nobody}", no_proxy="")
    assert batch.run(lines=[line("a", "completions", prompt="x", max_tokens=1)]) == (0, "")


BAD = {
    "custom_id must be text": {**line("a", "completions", prompt="x"), "custom_id": 1},
    "method must be POST": {**line("a", "completions", prompt="x"), "method": "GET"},
    "url must be the path": {**line("a", "completions", prompt="x"), "url": "http://example.com/v1/completions"},
    "body must be a JSON object": {**line("a", "completions"), "body": []},
    "body.stream must be false": line("a", "completions", prompt="x", stream=True),
    "no such field in a line of OpenAI's Batch API: prompt": {**line("a", "completions"), "prompt": "x"},
    "a line of OpenAI's Batch API must also have method, body": {"custom_id": "a", "url": "/v1/completions"},
}


def test_lines_that_fail_are_told_and_only_they_are_tried_again(batch: Batch) -> None:
    good = line("good", "completions", prompt="x")
    refused = [
        line("field", "completions", prompt="x", temperature=9),
        line("surrogate", "completions", prompt="\ud800"),
        line("path", "nothing", prompt="x"),
        line("model", "completions", prompt="x") | {"body": {"model": "other", "prompt": "x"}},
    ]
    status, told = batch.run(lines=[*BAD.values(), *refused, good])
    assert status == 1
    *bad, field, surrogate, path, model, last = batch.answers()
    for answer, message in zip(bad, BAD, strict=True):
        assert answer["response"] is None
        assert message in answer["error"]["message"]
    assert [answer["response"]["status_code"] for answer in (field, surrogate, path, model)] == [400, 400, 404, 404]
    assert field["response"]["body"]["error"]["param"] == "temperature"
    assert field["error"] == field["response"]["body"]["error"]
    assert last["error"] is None
    number = len(BAD) + 1
    assert told.splitlines()[number - 1].startswith(f"line {number}: invalid_request_error: temperature is 9")

    before = last["response"]["request_id"]
    assert batch.run("--retry-failed")[0] == 1
    assert batch.answers()[-1]["response"]["request_id"] == before


def test_parameters_of_the_command_line_are_refused(batch: Batch) -> None:
    assert batch.run("--max-tokens", "3", lines=[line("a", "completions", prompt="x")])[0] == 1
    assert "takes max_tokens from its body; leave the options out" in batch.answers()[0]["error"]["message"]


def test_requests_that_a_full_server_refuses_are_sent_again(batch: Batch) -> None:
    lines = [line(str(n), "completions", prompt=f"!refuse 2 batch{n} done") for n in range(3)]
    assert batch.run(lines=lines) == (0, "")
    assert [answer["response"]["body"]["choices"][0]["text"] for answer in batch.answers()] == ["done "] * 3


def test_gateway_that_wants_another_key_ends_the_batch(tmp_path: Path, server: TritonServer) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[[keys]]\nname = "team"\nsha256 = "{hashlib.sha256(b"secret").hexdigest()}"\n')
    with GatewayProcess(server.grpc_url, "--api-keys", str(keys)) as guarded:
        guarded.wait_for(["/health"], 30)
        batch = Batch(tmp_path, server, guarded.url)
        status, told = batch.run(lines=[line("a", "completions", prompt="x")])
        assert (status, told.count("\n")) == (1, 1)
        assert told.startswith(f"error: the gateway at {guarded.url}: ")
        assert batch.answers() == []
        assert batch.run("--header", "Authorization=Bearer secret") == (0, "")
    assert len(batch.answers()) == 1


def test_gateway_that_is_not_there_ends_the_batch(tmp_path: Path, server: TritonServer) -> None:
    nobody = f"http://127.0.0.1:{fill_ports(None)[0]}"
    status, told = Batch(tmp_path, server, nobody).run(lines=[line("a", "completions", prompt="x")])
    assert (status, told.count("\n")) == (1, 1)
    assert told.startswith(f"error: no answer from the gateway at {nobody}: ")
