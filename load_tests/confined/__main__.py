"""`make confined`: a server with a limit of memory, as in a container, under load.

Users send prompts of all lengths, until the KV cache is full and every part of the server has been used. Nothing may be
killed: what does not fit must be refused. It needs Linux and root, to make a control group.
"""

import argparse
import asyncio
import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from inflight.model.cpu.kernels import load_kernels
from load_tests.confined.memory_group import MemoryGroup, memory_group
from load_tests.endpoints import ANSWER_SECONDS, grpc_endpoint
from load_tests.generator import closed_loop
from load_tests.loads import read_loads
from load_tests.model_options import add_model_options, model_folder, model_name
from load_tests.option_types import count, positive
from load_tests.records import Run
from scripts.launch.errors import LauncherError
from scripts.launch.model_repository import render_repository
from scripts.launch.signals import end_like_ctrl_c
from scripts.launch.triton_server import TritonServer

_READY_SECONDS = 600
_LOOK_SECONDS = 0.2
_MIB = 2**20


class ConfinedServer(TritonServer):
    """A Triton server in a control group."""

    def __init__(self, repository: Path, group: MemoryGroup) -> None:
        super().__init__(repository, drain_seconds=5)
        self._group = group

    def _launch(self) -> tuple[list[str], dict[str, str]]:
        command, environment = super()._launch()
        return self._group.inside(command), environment


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add_model_options(parser)
    add("--mib", type=count, default=2048, help="limit of the server's memory in MiB (%(default)s)")
    add("--users", type=count, default=64, help="number of users (%(default)s)")
    add("--seconds", type=positive, default=60.0, help="how long they ask (%(default)s)")
    add("--loads", type=read_loads, default="long,top_p", metavar="NAME,...", help="what they ask (%(default)s)")
    return parser


@contextlib.contextmanager
def _server(model: Path, group: MemoryGroup) -> Iterator[TritonServer]:
    with tempfile.TemporaryDirectory(prefix="inflight-confined-") as scratch:
        repository = render_repository(Path(scratch) / "models", parameters={"model": str(model)})
        with ConfinedServer(repository, group) as server:
            server.wait_ready(_READY_SECONDS, ["llm"])
            yield server


async def _ask(url: str, options: argparse.Namespace, watch: Callable[[], object]) -> Run:
    """Send the requests, and call `watch` often meanwhile."""
    requests = chain.from_iterable(zip(*(load.requests() for load in options.loads), strict=True))

    async def look() -> None:
        while True:
            watch()
            await asyncio.sleep(_LOOK_SECONDS)

    looking = asyncio.create_task(look())
    try:
        async with grpc_endpoint(url) as endpoint:
            with tqdm(unit="request") as bar:
                return await closed_loop(
                    endpoint,
                    options.users,
                    requests,
                    seconds=options.seconds,
                    advance=bar.update,
                    drain=ANSWER_SECONDS,
                )
    finally:
        looking.cancel()


def _forget(folder: Path) -> None:
    """Drop the files of a folder from the kernel's cache, so that whoever reads them next pays for their memory."""
    for path in folder.iterdir():
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _is_kept(run: Run) -> bool:
    """Whether all requests were answered or refused, or ended at their own time limit, `ANSWER_SECONDS`."""
    return bool(run.done) and set(run.errors()) <= {"InvalidRequest", "ServerOverloaded", "DeadlineExceeded"}


def main() -> int:
    """Return the exit status: 0 if nothing was killed and all requests were answered or refused, else 1."""
    options = _parser().parse_args()
    killed, used = 0, [0]
    end_like_ctrl_c()
    try:
        model = model_folder(options)
        load_kernels()  # Compiles them outside of the limit, as a server does only at its first start.
        _forget(model)
        with memory_group(options.mib * _MIB) as group:
            try:
                with _server(model, group) as server:
                    run = asyncio.run(_ask(server.grpc_url, options, lambda: used.append(group.used_bytes())))
            finally:
                killed = group.kills()
    except KeyboardInterrupt:
        return 130
    except LauncherError as error:
        print(f"error: {error}", *getattr(error, "__notes__", ()), sep="\n", file=sys.stderr)
        print(f"{killed} processes were killed for lack of memory", file=sys.stderr)
        return 1
    others = ", ".join(f"{count} {error}" for error, count in run.errors().items()) or "none"
    print(f"{model_name(options)}, {options.users} users, {options.mib} MiB")
    print(f"whole answers: {len(run.done)}; others: {others}; {run.throughput:.0f} tokens/s")
    print(f"most memory that cannot be dropped: {max(used) / _MIB:.0f} MiB; processes killed for lack of it: {killed}")
    kept = _is_kept(run) and not killed
    print("every request was answered or refused" if kept else "the server was killed, or failed")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
