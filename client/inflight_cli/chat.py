"""Chat with the model, line by line. The model sees the whole conversation.

/reset starts a new conversation. /exit or the end of input ends the chat. Ctrl-C cancels the current answer; at the
prompt it ends the chat.
"""

import argparse
import asyncio
import io
import sys
from collections.abc import Iterator

from rich.console import Console

from inflight_cli.errors import CommandError, check_text
from inflight_cli.generate import print_stream
from inflight_cli.options import add_sampling_options, sampling_parameters
from inflight_client import AsyncClient, AsyncTextStream, InflightError, Message

HELP = "chat with the model"
# The model's own default is meant for completions. Answers in a chat are longer.
MAX_TOKENS = 512


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--system", metavar="TEXT", help="system message: tells the model how to answer")
    add_sampling_options(parser, max_tokens=MAX_TOKENS)


def run(options: argparse.Namespace) -> int:
    """Answer the lines of standard input until the chat ends, and return 0.

    Raises:
        CommandError: a line is not UTF-8, and standard input is not a terminal.
        InflightError: an answer failed, and standard input is not a terminal.
    """
    beginning: list[Message] = [] if options.system is None else [{"role": "system", "content": options.system}]
    conversation = beginning.copy()
    with asyncio.Runner() as runner:
        for line in _lines():
            match line.strip():
                case "":
                    continue
                case "/exit":
                    break
                case "/reset":
                    conversation = beginning.copy()
                case _:
                    _answer(runner, options, conversation, line)
    return 0


def _lines() -> Iterator[str]:
    assert isinstance(sys.stdin, io.TextIOWrapper)
    # `check_text` finds bytes that are not UTF-8. Without this, the locale decides whether reading them is an error.
    sys.stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    terminal = sys.stdin.isatty()
    if terminal:
        import readline  # noqa: F401  # Gives `input` line editing. On a pipe it would print to standard output.
    while True:
        try:
            yield input("> " if terminal else "")
        except EOFError:
            return


def _answer(runner: asyncio.Runner, options: argparse.Namespace, conversation: list[Message], question: str) -> None:
    """Print the answer, and add the question and the answer to the conversation.

    If the answer was cut off, its printed part is added. If nothing was printed, neither is added.
    """
    pieces: list[str] = []
    asked: list[Message] = [*conversation, {"role": "user", "content": question}]
    try:
        check_text(question, "the line")
        # Ctrl-C cancels only this task.
        runner.run(_stream(options, asked, pieces))
    except KeyboardInterrupt:
        print("(cancelled)", file=sys.stderr)
    except (CommandError, InflightError) as error:
        if not sys.stdin.isatty():
            raise
        print(f"error: {error}", file=sys.stderr)
    if pieces:
        conversation[:] = [*asked, {"role": "assistant", "content": "".join(pieces)}]


async def _stream(options: argparse.Namespace, messages: list[Message], pieces: list[str]) -> None:
    async with (
        AsyncClient(**options.connection) as client,
        client.stream(messages=messages, **sampling_parameters(options)) as stream,
    ):
        await print_stream(stream, pieces)
        _print_speed(stream)


def _print_speed(stream: AsyncTextStream) -> None:
    tokens, times = stream.usage.completion_tokens, stream.timings
    speed = f"{tokens} tokens, {tokens / times.total:.1f} tokens/s, the first after {times.first_token:.2f} s"
    Console(stderr=True, highlight=False, soft_wrap=True).print(speed, style="dim")
