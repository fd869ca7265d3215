"""`make chaos`: cause one fault at a time under load, and show what users notice.

It starts a service of its own: `make serve` and the gateway, each started again when it ends. Users ask for greedy
answers over gRPC, HTTP, the gateway and `completion`, and compare each piece of text with the right answer. It needs
Linux, root and util-linux's `unshare`, because the server gets its own small /dev/shm.
"""

import argparse
import asyncio
import os
import resource
import shutil
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import httpx
import openai
from tqdm import tqdm

from inflight_client import AsyncClient, RetryPolicy, Timeouts
from load_tests.chaos.experiment import Health, Outcome, experiment
from load_tests.chaos.faults import FAULTS, Fault, Stage, set_clock
from load_tests.chaos.proxy import proxy
from load_tests.chaos.report import broken_promises, table
from load_tests.chaos.service import Service
from load_tests.chaos.users import LIMIT_SECONDS, Door, GatewayDoor, NotAnswered, TritonDoor, Users, WholeDoor
from scripts.launch.errors import LauncherError
from scripts.launch.server_process import ADDRESS


def _faults(text: str) -> list[Fault]:
    wanted = [name.strip() for name in text.split(",")]
    if unknown := [name for name in wanted if name not in {fault.name for fault in FAULTS}]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is none of {', '.join(fault.name for fault in FAULTS)}")
    return [fault for fault in FAULTS if fault.name in wanted]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--times", type=int, default=5, help="how often each fault is caused (%(default)s)")
    add("--users", type=int, default=32, help="number of users (%(default)s)")
    add("--faults", type=_faults, default=FAULTS, metavar="NAME,...", help="the faults to cause; all if not given")
    add("--set-clock", action="store_true", help="also set this machine's clock 10 minutes forward, for 5 s each time")
    add("--logs", type=Path, metavar="FOLDER", help="keep the logs of the server and the gateway in this folder")
    return parser


@asynccontextmanager
async def _doors(service: Service, grpc_port: int, http_port: int) -> AsyncIterator[Sequence[Door]]:
    timeouts = Timeouts(first_token=2 * LIMIT_SECONDS, total=2 * LIMIT_SECONDS)
    once = RetryPolicy(attempts=1)
    async with AsyncExitStack() as stack:
        enter = stack.enter_async_context
        grpc = await enter(AsyncClient(f"grpc://{ADDRESS}:{grpc_port}", timeouts=timeouts, retry=once))
        http = await enter(AsyncClient(f"http://{ADDRESS}:{http_port}", timeouts=timeouts, retry=once))
        url = f"http://{ADDRESS}:{service.ports.gateway}/v1"
        gateway = await enter(openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0))
        triton = f"http://{ADDRESS}:{http_port}"
        whole = await enter(httpx.AsyncClient(base_url=triton, timeout=2 * LIMIT_SECONDS, trust_env=False))
        yield (
            TritonDoor("gRPC", grpc),
            TritonDoor("HTTP", http),
            GatewayDoor("gateway", gateway),
            WholeDoor("completion", whole),
        )


async def chaos(service: Service, faults: Sequence[Fault], times: int, number: int) -> dict[str, list[Outcome]]:
    """Cause each fault `times` times under the load of `number` users, with a progress bar.

    Raises LauncherError if the service does not get ready, NotAnswered if it gives no answers without a fault.
    """
    outcomes: dict[str, list[Outcome]] = {fault.name: [] for fault in faults}
    async with (
        service.running(),
        proxy(service.ports.grpc) as grpc,
        proxy(service.ports.http) as http,
        _doors(service, grpc.port, http.port) as doors,
    ):
        stage, users = Stage(service, (grpc, http)), Users(doors)
        await users.learn()
        health = Health(stage)
        load = [asyncio.create_task(users.run(number)), asyncio.create_task(health.watch())]
        try:
            with tqdm(total=len(faults) * times, unit="fault") as bar:
                for fault in faults:
                    bar.set_description_str(fault.name)
                    for _ in range(times):
                        outcomes[fault.name].append(await experiment(fault, stage, users, health))
                        bar.update()
        finally:
            for task in load:
                task.cancel()
            await asyncio.gather(*load, return_exceptions=True)
    return outcomes


def _keep_logs(source: Path, destination: Path) -> None:
    destination.mkdir(parents=True, exist_ok=True)
    for log in source.glob("*.log"):
        shutil.copy(log, destination)


def main() -> int:
    """Return the exit status: 0 if every promise was kept, 1 if one was broken or the service does not start."""
    options = _parser().parse_args()
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        print("error: this needs root and the program unshare", file=sys.stderr)
        return 1
    faults = [fault for fault in options.faults if fault.begin is not set_clock or options.set_clock]
    # Stopped in order, as by Ctrl-C: the service must not be left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with tempfile.TemporaryDirectory(prefix="inflight-chaos-") as scratch:
        service = Service(Path(scratch))
        outcomes: dict[str, list[Outcome]] = {}
        try:
            outcomes = asyncio.run(chaos(service, faults, options.times, options.users))
        except* (LauncherError, NotAnswered, ProcessLookupError) as errors:
            print(f"error: {errors.exceptions[0]}", file=sys.stderr)
        finally:
            if options.logs is not None:
                _keep_logs(Path(scratch), options.logs)
    if not outcomes:
        return 1
    print(table(outcomes))
    for process in service.processes().values():
        print(f"left behind at the end: {process}")
    broken = broken_promises(outcomes)
    print("\n".join(broken) or "every promise was kept")
    return 1 if broken or service.processes() else 0


if __name__ == "__main__":
    sys.exit(main())
