"""`inflight generate` streams to standard output. After an error it prints one line and returns an exit status."""

import json
import subprocess
from pathlib import Path

import pytest

from inflight_client import Client
from scripts.launch.triton_server import TritonServer
from tests.cli.program import SECONDS, Program, interrupt
from tests.client.test_cancellation import cancelled, cancelled_before
from tests.eventually import eventually


def test_text_comes_while_it_is_written_and_ctrl_c_cancels_it(program: Program, client: Client) -> None:
    before = cancelled_before(client)
    process = program.start("generate", "!gap 10 !forever")
    assert process.stdout is not None
    assert process.stdout.read(15) == "tick tick tick "
    output, errors = interrupt(process)
    assert output.endswith("\n")
    assert (process.returncode, errors) == (130, "")
    assert eventually(lambda: cancelled(client) == before + 1)


def test_a_reader_that_leaves_ends_it(program: Program, client: Client) -> None:
    before = cancelled_before(client)
    process = program.start("generate", "!gap 10 !forever")
    assert process.stdout is not None
    assert process.stdout.read(5) == "tick "
    process.stdout.close()
    assert process.wait(SECONDS) == 1
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert eventually(lambda: cancelled(client) == before + 1)


@pytest.mark.parametrize("arguments", [("generate",), ("generate", "-")])
def test_prompt_from_standard_input(program: Program, arguments: tuple[str, ...]) -> None:
    done = program.run(*arguments, text="Zwölf Bären\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Zwölf Bären \n", "")
    output = program.run(*arguments, text="!request two lines\nand no third\n").stdout
    request, _ = json.JSONDecoder().raw_decode(output)
    assert request["text_input"] == "!request two lines\nand no third"


def test_an_output_whose_encoding_lacks_a_character_of_the_answer(server: TritonServer) -> None:
    done = Program(server.grpc_url, PYTHONIOENCODING="ascii").run("generate", "-", text="Zwölf")
    assert (done.returncode, done.stdout, done.stderr) == (0, "Zw?lf \n", "")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-"], ids=["input", "output", "errors"])
def test_standard_streams_that_the_caller_has_closed(program: Program, closed: str) -> None:
    shell = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    arguments = ["generate"] if closed == "<&-" else ["generate", "one"]
    with program.start(*arguments, before=shell) as process:
        _, errors = process.communicate(timeout=SECONDS)
    assert (process.returncode, errors) == (0, "")


def test_whole_answer_as_json(program: Program) -> None:
    answer = json.loads(program.run("generate", "--json", "--max-tokens", "2", "one three five").stdout)
    assert 0 < answer["timings"].pop("first_token") <= answer["timings"].pop("total")
    assert answer == {
        "text": "one three ",
        "finish_reason": "length",
        "token_ids": [4, 6],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5},
        "timings": {},
    }


def test_a_draft_reaches_the_model_as_tokens(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "draft.txt"
    path.write_text("Bär")
    request, _ = json.JSONDecoder().raw_decode(program.run("generate", "!request", "--draft", str(path)).stdout)
    # A token of the echo model is a character.
    assert json.loads(request["sampling_parameters"])["draft_input_ids"] == [2**20 + ord(letter) for letter in "Bär"]


def test_the_form_of_an_answer_reaches_the_model(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "schema.json"
    path.write_text('{"type": "object"}')
    for arguments, expected in (
        (["--schema", str(path)], {"json": {"type": "object"}}),
        (["--schema", '{"type": "object"}'], {"json": {"type": "object"}}),
        (["--regex", "a+"], {"regex": "a+"}),
        (["--choice", "yes", "--choice", "no"], {"choice": ["yes", "no"]}),
    ):
        request = json.loads(program.run("generate", "!request", *arguments).stdout)
        assert json.loads(request["sampling_parameters"])["structured_outputs"] == expected
    done = program.run("generate", "a", "--schema", "{no}")
    assert (done.returncode, "is not valid JSON" in done.stderr) == (2, True)


def test_sampling_options_reach_the_model(program: Program) -> None:
    given = ["--temperature", "0.5", "--top-p", "0.9", "--top-k", "7", "--seed", "3", "--stop", "a", "--stop", "b c"]
    request = json.loads(program.run("generate", "!request", "--max-tokens", "9", *given).stdout)
    sampling = json.loads(request["sampling_parameters"])
    wanted = {"max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 7, "seed": 3, "stop": ["a", "b c"]}
    assert wanted.items() <= sampling.items()
    # Parameters that were not given are not sent.
    request = json.loads(program.run("generate", "!request").stdout)
    assert not wanted.keys() & json.loads(request["sampling_parameters"]).keys()


def test_error_of_the_server(program: Program) -> None:
    done = program.run("generate", "one two !error INTERNAL")
    assert (done.returncode, done.stdout, done.stderr) == (1, "one two \n", "error: failed with INTERNAL\n")


def test_no_server(program: Program) -> None:
    done = program.run("generate", "one", "--url", "127.0.0.1:1")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1


def test_model_of_another_name(program: Program) -> None:
    done = program.run("generate", "one", "--model", "nothing")
    assert done.returncode == 1
    assert "nothing" in done.stderr


def test_a_draft_that_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "draft.txt"
    path.write_bytes(b"\xff")
    done = Program("127.0.0.1:1").run("generate", "one", "--draft", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: {path} is not UTF-8")


def test_standard_input_that_is_no_text(program: Program) -> None:
    process = program.start("generate", errors="surrogateescape")
    output, errors = process.communicate("\udcff", timeout=SECONDS)
    assert (process.returncode, output) == (1, "")
    assert errors.startswith("error: standard input is not UTF-8")


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (b'{"a":' * 5000 + b"1" + b"}" * 5000, "too deep"),
        (b'{"a": "\xff"}', "not valid JSON: 'utf-8' codec can't decode"),
        (b"[]", "not a JSON object"),
    ],
)
def test_a_schema_that_cannot_be_read(tmp_path: Path, written: bytes, said: str) -> None:
    path = tmp_path / "schema.json"
    path.write_bytes(written)
    done = Program("127.0.0.1:1").run("generate", "one", "--schema", str(path))
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert said in done.stderr


def test_an_operator_key_that_is_no_text() -> None:
    done = Program("127.0.0.1:1", OPERATOR_KEY="secret\udcff").run("drain")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "error: OPERATOR_KEY is not UTF-8: see character 6\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["generate", "x", "--model", "\udcff"], "--model is not UTF-8"),
        (["generate", "x", "--max-tokens", "many"], "--max-tokens"),
        (["generate", "x", "--url", "ftp://host:1"], "ftp"),
        (["generate", "x", "--url", "http://host:1", "--ca", __file__], "not encrypted"),
        (["generate", "x", "--ca", "absent.pem"], "absent.pem"),
        (["generate", "x", "--header", "no value"], "NAME=VALUE"),
        (["generate", "x", "--url", "\udcff:1"], "--url is not UTF-8"),
        (["generate", "x", "--url", "grpcs://host:1", "--ca", __file__], "no certificate"),
        (["batch", "absent.jsonl", "out.jsonl"], "absent.jsonl"),
        (["batch", __file__, "/dev/stdout"], "not a regular file"),
        (["doctor", "--metrics-url", ""], "--metrics-url"),
        (["agent-check", "--port", "65536"], "at most 65535"),
        (["batch", __file__, "out.jsonl", "--concurrency", "0"], "over 0"),
        (["dance"], "dance"),
        ([], "COMMAND"),
    ],
)
def test_bad_arguments(arguments: list[str], said: str) -> None:
    done: subprocess.CompletedProcess[str] = Program("127.0.0.1:1").run(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr
