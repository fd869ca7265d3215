"""`inflight batch`: order, failures, bounds, and resuming after any interruption."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from inflight_client import Client
from scripts.launch.triton_server import TritonServer
from tests.cli.program import SECONDS, Program, interrupt
from tests.client.conftest import ECHO
from tests.client.test_cancellation import cancelled, cancelled_before
from tests.eventually import eventually


class Files:
    """The input and output files of a batch."""

    def __init__(self, folder: Path) -> None:
        self.input, self.output = folder / "in.jsonl", folder / "out.jsonl"
        self.retried = folder / "out.jsonl.retry"

    @property
    def arguments(self) -> list[str]:
        return ["batch", str(self.input), str(self.output)]

    def write(self, *lines: str | dict[str, Any]) -> None:
        text = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        self.input.write_text("".join(line + "\n" for line in text))

    def write_words(self, count: int, gap_ms: int = 0) -> None:
        self.write(*({"id": number, "prompt": f"!gap {gap_ms} a b{number}"} for number in range(count)))

    def answers(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.output.read_text().splitlines()]

    def check_words(self, count: int) -> None:
        """Check that the output has the answers to the input of `write_words`."""
        found = [(answer["index"], answer["id"], answer["text"]) for answer in self.answers()]
        assert found == [(number, number, f"a b{number} ") for number in range(count)]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


def wait_for_lines(path: Path, count: int) -> None:
    assert eventually(lambda: path.exists() and path.read_bytes().count(b"\n") >= count)


def test_answers_are_in_the_order_of_the_input(program: Program, files: Files) -> None:
    # The first lines take the longest.
    files.write(*({"id": f"n{n}", "prompt": f"!gap {90 - 10 * n} a b{n}"} for n in range(10)))
    done = program.run(*files.arguments, "--concurrency", "4")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    answers = files.answers()
    assert [answer["index"] for answer in answers] == list(range(10))
    assert [answer["id"] for answer in answers] == [f"n{n}" for n in range(10)]
    assert [answer["text"] for answer in answers] == [f"a b{n} " for n in range(10)]
    usage = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
    assert all((answer["usage"], answer["finish_reason"]) == (usage, "stop") for answer in answers)


def test_forms_of_a_line(program: Program, files: Files) -> None:
    files.write(
        {"prompt": "a b c", "max_tokens": 2},
        {"messages": [{"role": "user", "content": "from a chat"}]},
        {"prompt": [7, 8]},
        {"prompt": "!request", "temperature": 0.5},
    )
    assert program.run(*files.arguments, "--max-tokens", "9", "--temperature", "1").returncode == 0
    answers = files.answers()
    assert [answer["text"] for answer in answers[:3]] == ["a b ", "from a chat ", "[7, 8] "]
    assert [answer["id"] for answer in answers] == [None] * 4
    # A line's own parameters take precedence over those of the command line.
    sampling = json.loads(json.loads(answers[3]["text"])["sampling_parameters"])
    assert (sampling["max_tokens"], sampling["temperature"]) == (9, 0.5)


BAD_LINES = {
    "not JSON": "the line is not JSON",
    "": "the line is not JSON",
    "[" * 100_000: "the line is not JSON",
    "[1]": "not a JSON object, but list",
    '{"prompt": "a", "temperature": NaN}': "NaN is not a JSON number",
    '{"prompt": "a", "id": 1.5}': "id must be text or a whole number",
    '{"max_tokens": 3}': "must have either prompt or messages",
    '{"prompt": "a", "messages": []}': "must have either prompt or messages",
    '{"prompt": 3}': "prompt must be text or a list of token ids",
    '{"prompt": [true]}': "prompt must be text or a list of token ids",
    '{"prompt": [-1]}': "token id",
    '{"prompt": "\\ud800"}': "no text of whole characters",
    '{"messages": "a"}': "messages must be a list",
    '{"prompt": "a", "colour": 1, "n": 2}': "no such field: colour, n",
    '{"prompt": "a", "schema": 5}': "schema is 5; it must be a JSON schema",
    '{"prompt": "a", "schema": {}, "structured_outputs": {}}': "either a schema or structured_outputs",
    '{"prompt": "!error INVALID_ARG"}': "failed with INVALID_ARG",
}


def test_lines_that_fail_are_told_and_the_others_answered(program: Program, files: Files) -> None:
    last = {"id": "last", "prompt": "one !error INTERNAL"}
    files.write(*BAD_LINES, {"id": "good", "prompt": "one"}, last)
    done = program.run(*files.arguments)
    assert done.returncode == 1
    *bad, good, fault = files.answers()
    for answer, message in zip(bad, BAD_LINES.values(), strict=True):
        assert answer["error"]["type"] == "InvalidRequest"
        assert message in answer["error"]["message"]
    assert (good["id"], good["text"]) == ("good", "one ")
    assert (fault["id"], fault["error"]) == ("last", {"type": "ServerFault", "message": "failed with INTERNAL"})
    told = done.stderr.splitlines()
    assert len(told) == len(BAD_LINES) + 2
    assert told[-2] == f"line {len(BAD_LINES) + 2}: ServerFault: failed with INTERNAL"
    assert told[-1] == f"error: {len(BAD_LINES) + 1} of the lines failed; --retry-failed sends them again"


def test_killed_batch_loses_and_repeats_nothing(
    program: Program, files: Files, client: Client, arrived: Callable[[], int]
) -> None:
    count = 120
    files.write_words(count, gap_ms=20)
    process = program.start(*files.arguments, "--concurrency", "4")
    wait_for_lines(files.output, 30)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    kept = files.output.read_bytes()
    lines = kept.count(b"\n")
    assert 30 <= lines < count
    # A partial line, as a killed process can leave it.
    files.output.write_bytes(kept + b'{"index": %d, "dig' % lines)

    # Wait until the requests of the killed process have ended, so that later requests belong to the second run.
    assert eventually(lambda: client.metrics().value("nv_inference_pending_request_count", model="llm") == 0)
    before = arrived()
    assert program.run(*files.arguments).returncode == 0
    files.check_words(count)
    assert files.output.read_bytes().startswith(kept)
    assert arrived() - before == count - lines

    # A third run has nothing to do.
    before, whole = arrived(), files.output.read_bytes()
    assert program.run(*files.arguments).returncode == 0
    assert files.output.read_bytes() == whole
    assert arrived() == before


def test_interrupted_batch_cancels_what_runs(program: Program, files: Files, client: Client) -> None:
    before = cancelled_before(client)
    files.write({"prompt": "one"}, *[{"prompt": "!gap 10 !forever"}] * 3)
    process = program.start(*files.arguments)
    wait_for_lines(files.output, 1)
    _, errors = interrupt(process)
    assert (process.returncode, errors) == (130, "")
    assert eventually(lambda: cancelled(client) == before + 3)
    assert [answer["text"] for answer in files.answers()] == ["one "]


def test_output_of_something_else_is_left_alone(program: Program, files: Files) -> None:
    files.write_words(3)
    assert program.run(*files.arguments).returncode == 0
    whole = files.output.read_bytes()

    def refused(*options: str) -> None:
        for retry in ((), ("--retry-failed",)):
            before = files.output.read_bytes()
            done = program.run(*files.arguments, *options, *retry)
            assert done.returncode == 1
            assert "does not answer that line of this input" in done.stderr
            assert files.output.read_bytes() == before

    refused("--seed", "1")
    files.write({"prompt": "another"})
    refused()
    files.write_words(2)
    refused()
    files.write_words(3)
    for other in (b"precious notes", b"precious notes\n", b'{"index": 0}\n', whole[:-1] + b"\n\n"):
        files.output.write_bytes(other)
        refused()


def test_input_may_grow(program: Program, files: Files) -> None:
    files.write_words(2)
    assert program.run(*files.arguments).returncode == 0
    files.write_words(5)
    assert program.run(*files.arguments).returncode == 0
    files.check_words(5)


def spoil(files: Files, *indices: int) -> None:
    """Replace answers with errors, as after a temporary failure of the server."""
    answers = files.answers()
    for index in indices:
        head = {key: answers[index][key] for key in ("index", "digest", "id")}
        answers[index] = {**head, "error": {"type": "ServerFault", "message": "out of memory"}}
    files.output.write_text("".join(json.dumps(answer) + "\n" for answer in answers))


def test_failures_stay_unless_they_are_to_be_tried_again(
    program: Program, files: Files, arrived: Callable[[], int]
) -> None:
    files.write_words(6)
    assert program.run(*files.arguments).returncode == 0
    spoil(files, 1, 4)
    before = arrived()
    done = program.run(*files.arguments)
    assert done.returncode == 1
    assert done.stderr.startswith("line 2: ServerFault: out of memory\nline 5: ServerFault")
    assert arrived() == before

    done = program.run(*files.arguments, "--retry-failed")
    assert (done.returncode, done.stderr) == (0, "")
    files.check_words(6)
    assert arrived() == before + 2
    assert not files.retried.exists()


def test_killed_retry_goes_on(program: Program, files: Files) -> None:
    count = 80
    files.write_words(count, gap_ms=20)
    assert program.run(*files.arguments).returncode == 0
    spoil(files, *range(10, count))
    spoiled = files.output.read_bytes()
    process = program.start(*files.arguments, "--retry-failed", "--concurrency", "2")
    wait_for_lines(files.retried, 20)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=SECONDS)
    # The old output stays until the new one is complete.
    assert files.output.read_bytes() == spoiled
    assert program.run(*files.arguments, "--retry-failed").returncode == 0
    files.check_words(count)
    assert not files.retried.exists()


def test_answers_that_wait_for_an_earlier_one_are_bounded(
    program: Program, files: Files, arrived: Callable[[], int]
) -> None:
    slow = "!gap 100 " + "slow " * 25
    files.write({"prompt": slow}, *[{"prompt": "fast"}] * 100)
    process = program.start(*files.arguments, "--concurrency", "2")
    started = 0
    written = False
    while not written and process.poll() is None:
        count = arrived()
        written = files.output.exists() and bool(files.output.read_bytes())
        # As long as nothing has been written, these requests all arrived before the first one was answered.
        started = started if written else count
    process.communicate(timeout=SECONDS)
    assert process.returncode == 0
    assert started == 16
    assert len(files.answers()) == 101


def test_only_one_batch_writes_to_a_file(program: Program, files: Files) -> None:
    files.write({"prompt": "one"}, {"prompt": "!gap 10 !forever"})
    process = program.start(*files.arguments)
    wait_for_lines(files.output, 1)
    for retry in ((), ("--retry-failed",)):
        done = program.run(*files.arguments, *retry)
        assert done.returncode == 1
        assert "another batch writes to" in done.stderr
    interrupt(process)


def test_server_that_dies_ends_the_batch_and_no_line(program: Program, files: Files, tmp_path: Path) -> None:
    count = 60
    files.write_words(count, gap_ms=20)
    repository = tmp_path / "models"
    repository.mkdir()
    (repository / "llm").symlink_to(ECHO)
    with TritonServer(repository, drain_seconds=2) as mortal:
        mortal.wait_ready(60, ["llm"])
        process = program.start(*files.arguments, "--concurrency", "2", "--url", mortal.grpc_url)
        wait_for_lines(files.output, 10)
        mortal.kill()
        output, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, output) == (1, "")
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1
    answers = files.answers()
    assert 10 <= len(answers) < count
    assert not any("error" in answer for answer in answers)

    # The batch continues on another server.
    assert program.run(*files.arguments).returncode == 0
    files.check_words(count)
