"""`inflight chat` keeps the conversation, both on a pipe and in a terminal."""

import json

import pytest

from inflight_client import Client
from scripts.launch.triton_server import TritonServer
from tests.cli.program import SECONDS, Program, Terminal, interrupt
from tests.client.test_cancellation import cancelled, cancelled_before
from tests.eventually import eventually

ASK = "!request"


def said(line: str) -> list[tuple[str, str]]:
    """Return the role and content of each message in the conversation that arrived with `ASK`."""
    messages = json.loads(json.loads(line)["messages"])
    return [(message["role"], message["content"]) for message in messages]


def test_conversation_is_kept_until_reset(program: Program) -> None:
    done = program.run("chat", "--system", "Be brief.", text=f"one two\n\n{ASK}\n/reset\n{ASK}\n/exit\nthree\n")
    first, second, third = done.stdout.splitlines()
    assert first == "one two "
    system = ("system", "Be brief.")
    assert said(second) == [system, ("user", "one two"), ("assistant", "one two "), ("user", ASK)]
    assert said(third) == [system, ("user", ASK)]
    assert done.returncode == 0


def test_speed_is_shown_after_each_answer(program: Program) -> None:
    done = program.run("chat", text="one two three\none\n")
    first, second = done.stderr.splitlines()
    assert first.startswith("3 tokens, ")
    assert second.startswith("1 tokens, ")
    assert all("tokens/s, the first after" in line for line in (first, second))


def test_an_answer_may_be_longer_than_a_completion(program: Program) -> None:
    request = json.loads(program.run("chat", text=ASK).stdout)
    assert json.loads(request["sampling_parameters"])["max_tokens"] == 512
    request = json.loads(program.run("chat", "--max-tokens", "9", text=ASK).stdout)
    assert json.loads(request["sampling_parameters"])["max_tokens"] == 9


def test_on_a_pipe_an_error_ends_it(program: Program) -> None:
    done = program.run("chat", text="one !error INTERNAL\ntwo\n")
    assert (done.returncode, done.stdout, done.stderr) == (1, "one \n", "error: failed with INTERNAL\n")


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_line_that_is_no_text(server: TritonServer, errors: str) -> None:
    """What Python makes of such a line depends on the locale."""
    program = Program(server.grpc_url, PYTHONIOENCODING=f"utf-8:{errors}")
    process = program.start("chat", errors="surrogateescape")
    output, said = process.communicate("one\ntwo \udcff\n", timeout=SECONDS)
    assert (process.returncode, output) == (1, "one \n")
    assert said.endswith("error: the line is not UTF-8: see character 4\n")


def test_in_a_terminal_a_line_that_is_no_text_is_told(program: Program) -> None:
    with Terminal(program, "chat") as terminal:
        terminal.read_until("> ")
        terminal.type("two \udcff\n")
        terminal.read_until("error: the line is not UTF-8")
        terminal.read_until("> ")
        terminal.type("one\n")
        terminal.read_until("tokens/s")


def test_ctrl_c_ends_an_answer_and_at_the_prompt_the_chat(program: Program, client: Client) -> None:
    before = cancelled_before(client)
    with Terminal(program, "chat") as terminal:
        terminal.read_until("> ")
        terminal.type("!gap 10 !forever\n")
        terminal.read_until("tick tick ")
        terminal.press_ctrl_c()
        terminal.read_until("(cancelled)")
        terminal.read_until("> ")
        assert eventually(lambda: cancelled(client) == before + 1)
        # The part of the answer that was printed belongs to the conversation.
        terminal.type(f"{ASK}\n")
        terminal.read_until('{"messages"')
        assert "tick tick" in terminal.read_until("tokens/s")
        terminal.read_until("> ")
        terminal.press_ctrl_c()
        # If the signal arrives between the prompt and the wait for a key, CPython handles it only at the next key.
        terminal.type("\n")
        assert terminal.process.wait(SECONDS) == 130


def test_in_a_terminal_an_error_leaves_the_conversation_as_it_was(program: Program) -> None:
    with Terminal(program, "chat") as terminal:
        terminal.read_until("> ")
        terminal.type("!error INTERNAL\n")
        terminal.read_until("error: failed with INTERNAL")
        terminal.read_until("> ")
        terminal.type(f"{ASK}\n")
        terminal.read_until('{"messages"')
        assert "INTERNAL" not in terminal.read_until("tokens/s")
        terminal.read_until("> ")
        terminal.type("\x04")
        assert terminal.process.wait(SECONDS) == 0


def test_ctrl_c_on_a_pipe(program: Program, client: Client) -> None:
    before = cancelled_before(client)
    process = program.start("chat")
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write("!gap 10 !forever\n")
    process.stdin.flush()
    assert process.stdout.read(10) == "tick tick "
    process.stdin.write("next\n")
    output, _ = interrupt(process)
    assert output.endswith("\nnext \n")
    assert process.returncode == 0
    assert eventually(lambda: cancelled(client) == before + 1)
