"""`make storm`: very many requests of all kinds at once, honest and hostile, each checked.

It starts a service of its own: `make serve` and the gateway. Users ask over gRPC, HTTP, the gateway and `completion`.
Honest ones compare their answers to the letter with those that the same questions had alone. Others send malformed
fields, cancel, close connections, read slowly, or set deadlines that pass. The memory of all processes is compared: at
the end, and after a tenth of the requests. It needs Linux, root and util-linux's `unshare`, because the server gets its
own small /dev/shm.
"""

import argparse
import asyncio
import sys
from pathlib import Path

from load_tests.chaos.doors import NotAnswered
from load_tests.chaos.service import Service
from load_tests.chaos.workplace import workplace
from load_tests.option_types import count, results_folder, seed
from load_tests.storm.answers import Answers
from load_tests.storm.report import broken_promises, tables
from load_tests.storm.storm import PARTS, Weather, learn_answers, storm
from scripts.launch.errors import LauncherError

# Small, so that requests wait for room and preempt each other. The malformed requests name this number.
_CACHE_TOKENS = 6144


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--requests", type=count, default=10_000, help="number of requests (%(default)s)")
    add("--users", type=count, default=128, help="number of users (%(default)s)")
    add("--seed", type=seed, default=0, help="another number gives other requests (%(default)s)")
    add(
        "--speculation",
        metavar="JSON",
        help="the setting speculative_config of the server; the right answers are then those of one without it",
    )
    add(
        "--logs",
        type=results_folder,
        metavar="FOLDER",
        help="keep the logs of the server and the gateway in this folder",
    )
    return parser


async def _run(folder: Path, options: argparse.Namespace) -> Weather:
    settings = {"kv_cache_tokens": str(_CACHE_TOKENS)}
    if options.speculation is None:
        service = Service(folder, settings)
        async with service.running():
            return await _storm(service, await learn_answers(service), options)
    (folder / "plain").mkdir()
    plain = Service(folder / "plain", settings)
    async with plain.running():
        answers = await learn_answers(plain)
    service = Service(folder, {**settings, "speculative_config": options.speculation})
    async with service.running():
        return await _storm(service, answers, options)


async def _storm(service: Service, answers: Answers, options: argparse.Namespace) -> Weather:
    return await storm(service, answers, options.requests, options.users, options.seed)


def main() -> int:
    """Return the exit status: 0 if every promise was kept, 1 if one was broken or the service does not start."""
    options = _parser().parse_args()
    if options.requests < PARTS:
        print(f"error: --requests is {options.requests}; it must be at least {PARTS}", file=sys.stderr)
        return 1
    weather = None
    try:
        with workplace(options.logs) as folder:
            weather = asyncio.run(_run(folder, options))
    except* (LauncherError, NotAnswered) as errors:
        print(f"error: {errors.exceptions[0]}", file=sys.stderr)
    if weather is None:
        return 1
    rate = options.requests / weather.seconds
    print(f"{options.requests} requests of {options.users} users took {weather.seconds:.0f} s, {rate:.0f} a second.")
    print(f"The users themselves stood still for at most {weather.longest_stall:.1f} s.\n")
    print(tables(weather), *weather.faults, sep="\n\n")
    broken = broken_promises(weather)
    print("", *(broken or ["every promise was kept"]), sep="\n")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
