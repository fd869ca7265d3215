"""Answer one prompt and stream the text to standard output."""

import argparse
import asyncio
import json
import sys
from dataclasses import asdict
from typing import Any

from inflight_cli.errors import CommandError
from inflight_cli.options import add_sampling_options, readable_file, sampling_parameters
from inflight_client import AsyncClient, AsyncTextStream, Completion, Usage

HELP = "answer one prompt"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "prompt", nargs="?", default="-", metavar="PROMPT", help="the prompt; if absent or -, standard input"
    )
    parser.add_argument(
        "--json", action="store_true", help="print the whole answer as one JSON object, with token ids and timings"
    )
    add_sampling_options(parser)
    parser.add_argument(
        "--image",
        type=readable_file,
        action="append",
        metavar="FILE",
        help="an image, for each place in the prompt, such as <image>; can be repeated",
    )
    parser.add_argument(
        "--draft",
        type=readable_file,
        metavar="FILE",
        help="a file with a text that the answer may repeat, as code to edit",
    )
    group = parser.add_argument_group("what the answer must be").add_mutually_exclusive_group()
    group.add_argument(
        "--schema", type=_schema, metavar="FILE", help="JSON that matches this JSON schema: a file, or JSON"
    )
    group.add_argument("--regex", metavar="PATTERN", help="text that matches this regular expression")
    group.add_argument("--choice", action="append", metavar="TEXT", help="this text; can be repeated: one of them")


def _schema(text: str) -> dict[str, Any]:
    """Read a JSON schema, or a file that holds one; for argparse."""
    written = text if text.lstrip().startswith("{") else readable_file(text).read_bytes()
    try:
        schema = json.loads(written)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not valid JSON: {error}") from None
    except RecursionError:
        raise argparse.ArgumentTypeError(f"{text!r} has lists and objects that are too deep in each other") from None
    if not isinstance(schema, dict):
        raise argparse.ArgumentTypeError(f"{text!r} is not a JSON object")
    return schema


def run(options: argparse.Namespace) -> int:
    """Print the answer and return 0.

    Raises:
        CommandError: standard input or the draft is not UTF-8.
        InflightError: as `AsyncClient.stream`.
    """
    prompt = _read_prompt() if options.prompt == "-" else options.prompt
    draft = None if options.draft is None else _decoded(options.draft.read_bytes(), str(options.draft))
    # Not `Client`: Ctrl-C in a thread that waits for gRPC can leave a lock of gRPC held for ever. Here it cancels a
    # task instead.
    asyncio.run(_generate(options, prompt, draft))
    return 0


async def _generate(options: argparse.Namespace, prompt: str, draft: str | None) -> None:
    sampling = sampling_parameters(options)
    given = {"json": options.schema, "regex": options.regex, "choice": options.choice}
    if form := {name: value for name, value in given.items() if value is not None}:
        sampling["structured_outputs"] = form
    if options.image:
        sampling["images"] = [file.read_bytes() for file in options.image]
    async with AsyncClient(**options.connection) as client:
        if draft is not None:
            sampling["draft_input_ids"] = (await client.tokenize(draft, add_special_tokens=False)).token_ids
        if options.json:
            print(json.dumps(_as_json(await client.generate(prompt, **sampling))))
        else:
            async with client.stream(prompt, **sampling) as stream:
                await print_stream(stream, [])


async def print_stream(stream: AsyncTextStream, pieces: list[str]) -> None:
    """Print an answer as it arrives, and append it to `pieces`, so that the caller has it even after an error."""
    try:
        async for chunk in stream:
            pieces.append(chunk.text)
            print(chunk.text, end="", flush=True)
    finally:
        if pieces:
            print(flush=True)


def usage_json(usage: Usage) -> dict[str, int]:
    """Return the token counts under OpenAI's names."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
    }


def _as_json(completion: Completion) -> dict[str, object]:
    return {
        "text": completion.text,
        "finish_reason": completion.finish_reason,
        "token_ids": completion.token_ids,
        "usage": usage_json(completion.usage),
        "timings": asdict(completion.timings),
    }


def _read_prompt() -> str:
    # The newline at the end of the file is not part of the prompt.
    return _decoded(sys.stdin.buffer.read(), "standard input").removesuffix("\n")


def _decoded(read: bytes, source: str) -> str:
    try:
        return read.decode()
    except UnicodeDecodeError as error:
        raise CommandError(f"{source} is not UTF-8: {error}") from None
