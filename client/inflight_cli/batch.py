"""Answer a file of prompts, many at once.

Each line of IN is a JSON object with `prompt` or `messages`, optionally an `id`, and any sampling parameters. They take
precedence over the options here. Line i of OUT answers line i of IN, with text or an error. To continue a batch that
was interrupted, start it again with the same arguments. Lines of OpenAI's Batch API, with `custom_id`, `method`, `url`
and `body`, are sent to a gateway, and answered in that API's form.
"""

import argparse
import asyncio
import itertools
import os
import sys
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from tqdm import tqdm

from inflight_cli.batch_answerer import Answerer
from inflight_cli.batch_gateway import Gateway
from inflight_cli.batch_input import InputLine, read_lines
from inflight_cli.batch_output import answered, encode, error_of, failures, open_alone
from inflight_cli.options import add_sampling_options, http_url, positive, readable_file, sampling_parameters
from inflight_client import AsyncClient, RetryPolicy

HELP = "answer a file of prompts"

# A batch waits longer than a person: it gives up after about 10 s if the server is unreachable or full.
RETRY = RetryPolicy(attempts=6)
# Answers are written in order. At most `concurrency` times this many lines are in memory, running or waiting for an
# earlier answer.
WINDOW = 8
MAX_FAILURES_SHOWN = 20
DEFAULT_GATEWAY = "http://127.0.0.1:9000"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("input", type=readable_file, metavar="IN.jsonl")
    parser.add_argument("output", type=_output_file, metavar="OUT.jsonl")
    parser.add_argument(
        "--concurrency", type=positive, default=32, metavar="N", help="maximum number of requests at once (%(default)s)"
    )
    parser.add_argument("--retry-failed", action="store_true", help="send the lines again that have an error in OUT")
    parser.add_argument(
        "--gateway",
        type=http_url,
        default=os.environ.get("INFLIGHT_GATEWAY") or DEFAULT_GATEWAY,
        metavar="URL",
        help="where lines of OpenAI's Batch API go (default: the environment variable INFLIGHT_GATEWAY, or "
        f"{DEFAULT_GATEWAY})",
    )
    add_sampling_options(parser)


def run(options: argparse.Namespace) -> int:
    """Complete the output. Returns 0, or 1 if a line of the output has an error.

    Raises:
        CommandError: the output belongs to another input or to other options.
        InflightError: the server is unreachable, or cannot answer any request.
    """
    output = options.output.resolve()
    if options.retry_failed:
        # A separate file, which can be resumed like any other. It replaces the old output only when it is complete.
        retried = output.with_name(output.name + ".retry")
        with open_alone(output):
            asyncio.run(_complete(options, retried, previous=output))
            os.replace(retried, output)
    else:
        asyncio.run(_complete(options, output, previous=None))
    return _report_failures(output)


async def _complete(options: argparse.Namespace, output: Path, previous: Path | None) -> None:
    """Write the lines that `output` lacks. The answers of `previous` without an error are copied."""
    sampling = sampling_parameters(options)

    def lines() -> Iterator[InputLine]:
        return read_lines(options.input, options.model, sampling)

    total = sum(1 for _ in lines())
    with open_alone(output) as file:
        done, size = 0, 0
        for answer in answered(output, lines()):
            done, size = done + 1, size + len(answer)
        file.truncate(size)

        def write(answer: bytes) -> None:
            file.write(answer)
            file.flush()

        old = () if previous is None else answered(previous, lines())
        jobs = itertools.islice(itertools.zip_longest(lines(), old), done, None)
        connection = options.connection
        async with (
            AsyncClient(**connection, retry=RETRY) as client,
            Gateway(options.gateway, connection["headers"], options.ca, RETRY) as gateway,
        ):
            answerer = Answerer(client, gateway, sampling)
            with tqdm(total=total, initial=done, unit="request", disable=None) as bar:
                await _answer_in_order(answerer, jobs, options.concurrency, write, bar.update)
        os.fsync(file.fileno())


async def _answer_in_order(
    answerer: Answerer,
    jobs: Iterator[tuple[InputLine, bytes | None]],
    concurrency: int,
    write: Callable[[bytes], object],
    advance: Callable[[], object],
) -> None:
    """Answer all lines, at most `concurrency` at once, and write the answers in order.

    A job is a line and its old answer, or None if it has no old answer.
    """
    slots = asyncio.Semaphore(concurrency)
    pending: deque[asyncio.Task[bytes]] = deque()

    async def answer(line: InputLine, old: bytes | None) -> bytes:
        if old is None or error_of(old) is not None:
            async with slots:
                old = encode(line, await answerer.answer(line))
        advance()
        return old

    try:
        for line, old in jobs:
            if len(pending) == concurrency * WINDOW:
                write(await pending.popleft())
            pending.append(asyncio.create_task(answer(line, old)))
        while pending:
            write(await pending.popleft())
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _output_file(text: str) -> Path:
    """Read the path of the output; for argparse. A batch that goes on reads its output, so a pipe will not do."""
    path = Path(text)
    if path.exists() and not path.is_file():
        raise argparse.ArgumentTypeError(f"{text!r} is not a regular file")
    return path


def _report_failures(output: Path) -> int:
    count = 0
    for count, failure in enumerate(failures(output), start=1):
        if count <= MAX_FAILURES_SHOWN:
            print(failure, file=sys.stderr)
    if count > MAX_FAILURES_SHOWN:
        print(f"and {count - MAX_FAILURES_SHOWN} more", file=sys.stderr)
    if count:
        print(f"error: {count} of the lines failed; --retry-failed sends them again", file=sys.stderr)
    return 1 if count else 0
