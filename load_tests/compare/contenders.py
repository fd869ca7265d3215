"""The servers that can be compared: ours with any settings, and others that `make peers` installs."""

import argparse
import contextlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

from load_tests.endpoints import Endpoint, grpc_endpoint, openai_endpoint
from scripts.launch.errors import LauncherError
from scripts.launch.model_repository import render_repository
from scripts.launch.served_model import DTYPE
from scripts.launch.server_process import ServerProcess
from scripts.launch.triton_server import TritonServer
from scripts.peers import llama_cpp, transformers, vllm
from scripts.peers.peer import MODEL, Peer
from scripts.peers.transformers_server import BATCHINGS

STRATEGIES = ("continuous", "static", "dynamic", "bucketed")
READY_SECONDS = 600.0
NOT_INSTALLED = "`make peers` has not installed it"
TRANSFORMERS = "transformers"
PEERS = (TRANSFORMERS, vllm.NAME, llama_cpp.NAME)
DRAFTING = ", drafting"

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Endpoint]]


@dataclass(frozen=True)
class Contender:
    """A server to compare."""

    name: str
    start: Callable[[int], AbstractContextManager[tuple[ServerProcess, Connect]]]
    """Takes the number of users. Yields the running server and a function that connects to it."""


def ours(name: str, model: Path, parameters: Mapping[str, str], *, slot_for_each_user: bool = False) -> Contender:
    """Our server with a model. `parameters` replace those of config.pbtxt."""

    @contextlib.contextmanager
    def start(users: int) -> Iterator[tuple[ServerProcess, Connect]]:
        settings = {"model": str(model), "dtype": DTYPE, **parameters}
        if slot_for_each_user:
            settings["max_num_seqs"] = str(users)
        with tempfile.TemporaryDirectory(prefix="inflight-compare-") as scratch:
            repository = render_repository(Path(scratch) / "models", parameters=settings)
            with TritonServer(repository, drain_seconds=5) as server:
                server.wait_ready(READY_SECONDS, ["llm"])
                yield server, lambda: grpc_endpoint(server.grpc_url)

    return Contender(name, start)


def peer(name: str, make: Callable[[int], Peer]) -> Contender:
    """Another server with OpenAI's protocol. `make` takes the number of users."""

    @contextlib.contextmanager
    def start(users: int) -> Iterator[tuple[ServerProcess, Connect]]:
        with make(users) as server:
            server.wait_ready(READY_SECONDS)
            yield server, lambda: openai_endpoint(f"http://{server.http_url}", MODEL)

    return Contender(name, start)


def read_system(text: str) -> tuple[str, dict[str, str]]:
    """Parse the value of `--system`: a name and parameters. Raises argparse.ArgumentTypeError if it is not valid."""
    name, _, rest = text.partition(":")
    malformed = argparse.ArgumentTypeError(f"{text!r} is not of the form 'NAME: PARAMETER=VALUE,...'")
    if not name.strip():
        raise malformed
    parameters: dict[str, str] = {}
    while rest := rest.strip(", "):
        key, separator, rest = (part.strip() for part in rest.partition("="))
        if not key or not separator:
            raise malformed
        if key in parameters:
            raise argparse.ArgumentTypeError(f"{text!r} gives {key} twice")
        parameters[key], rest = _value(key, rest)
    return name.strip(), parameters


def _value(key: str, text: str) -> tuple[str, str]:
    """The value of a parameter at the start of a text, and what follows its comma. JSON may have commas itself."""
    end = 0
    if text.startswith(("{", "[")):
        try:
            _, end = json.JSONDecoder().raw_decode(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(f"{key} is {text!r}, which is not valid JSON: {error}") from None
    more, _, rest = text[end:].partition(",")
    return (text[:end] + more).strip(), rest


def strategies(model: Path) -> list[Contender]:
    """Our server with each of its batching strategies."""
    return [ours(name, model, {"batching_strategy": name}) for name in STRATEGIES]


def read_peers(text: str) -> list[str]:
    """Parse the value of `--peers`: names of `PEERS` with commas in between. Raises argparse.ArgumentTypeError."""
    names = text.split(",")
    if unknown := [name for name in names if name not in PEERS]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(PEERS)}")
    return names


def peers(
    model: Path, names: Sequence[str] = PEERS, *, drafting: bool = False
) -> tuple[list[Contender], dict[str, str]]:
    """Those of `names` that can serve a model, and why each of the others can't.

    With `drafting`, those that have speculative decoding by n-gram look-up come a second time, with it turned on.
    """
    present: dict[str, Callable[[int], Peer]] = {}
    absent = {name: NOT_INSTALLED for name in names if name != TRANSFORMERS}
    if TRANSFORMERS in names:
        present |= {
            f"transformers, {batching}": partial(transformers.server, batching, model) for batching in BATCHINGS
        }
    if vllm.NAME in names and vllm.installed():
        present |= _variants(vllm.NAME, partial(vllm.server, model), drafting=drafting)
    if llama_cpp.NAME in names and llama_cpp.installed():
        try:
            server = partial(llama_cpp.server, llama_cpp.model_file(model))
            present |= _variants(llama_cpp.NAME, server, drafting=drafting)
        except LauncherError as error:
            absent[llama_cpp.NAME] = str(error)
    missing = {name: reason for name, reason in absent.items() if name not in present}
    return [peer(name, make) for name, make in present.items()], missing


def _variants(name: str, make: Callable[..., Peer], *, drafting: bool) -> dict[str, Callable[[int], Peer]]:
    """A server by its name, and with `drafting` also the one that drafts."""
    return {name: make, **({f"{name}{DRAFTING}": partial(make, drafts=True)} if drafting else {})}
