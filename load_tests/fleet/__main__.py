"""`make bench-fleet`: three servers with small KV caches behind one address.

routing  tokens per second and prefix cache hits of 48 users: our client with each of its balances, and smg before the
         gateways
outages  one server killed, and all restarted one after the other, behind each load balancer and our client

It needs HAProxy and nginx. The machine must have nothing else to do.
"""

import argparse
import asyncio
import sys
from functools import partial

from tqdm import tqdm

from load_tests.fleet.outage import HEADER, kill_one, restart_all
from load_tests.fleet.routing import LOADS, WAYS, Seen, Way, run_turn, table
from load_tests.fleet.ways import client_way, grpc_way, openai_way
from load_tests.option_types import count, positive
from scripts.fleet.fleet import Fleet
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.signals import end_like_ctrl_c

_SERVERS = 3
_KV_CACHE_TOKENS = 12_288
"""Room for a third of the users' chats, and some more."""
_OUTAGES: dict[str, dict[str, Way]] = {
    "none": {"client": partial(client_way, balance="prefix")},
    "haproxy": {"HAProxy, gRPC": grpc_way, "HAProxy, OpenAI": openai_way},
    "nginx": {"nginx, gRPC": grpc_way, "nginx, OpenAI": openai_way},
    "envoy": {"Envoy, gRPC": grpc_way, "Envoy, OpenAI": openai_way},
    "smg": {"smg, OpenAI": openai_way},
}


def _balancers(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in _OUTAGES]:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is not one of {', '.join(_OUTAGES)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("routing", "outages"), help="measure only this")
    parser.add_argument(
        "--balancers",
        type=_balancers,
        default=list(_OUTAGES),
        metavar="NAME,...",
        help=f"of the outages, by default all: {', '.join(_OUTAGES)}",
    )
    parser.add_argument("--rounds", type=count, default=2, help="of the routing (%(default)s)")
    parser.add_argument("--seconds", type=positive, default=60.0, help="of each turn of the routing (%(default)s)")
    return parser


def _routing(options: argparse.Namespace) -> None:
    with _fleet("smg") as fleet:
        for load, workload in LOADS.items():
            seen = asyncio.run(_turns(fleet, workload, options, load))
            print(f"\n{load}\n\n{table(seen, 'client, round_robin')}", flush=True)


async def _turns(fleet: Fleet, workload: str, options: argparse.Namespace, description: str) -> dict[str, Seen]:
    seen = {name: Seen() for name in WAYS}
    with tqdm(total=len(WAYS) * options.rounds, desc=description, unit="turn") as bar:
        for round_number in range(options.rounds):
            for number, (name, way) in enumerate(WAYS.items()):
                seed = 100 * round_number + number  # Chats of their own.
                await run_turn(fleet, way, workload, options.seconds, seed, seen[name])
                bar.update()
    return seen


def _outages(options: argparse.Namespace) -> None:
    rows = []
    for balancer in options.balancers:
        with _fleet(balancer) as fleet:
            for seed, (name, way) in enumerate(_OUTAGES[balancer].items()):
                for outage in (kill_one, restart_all):
                    row = asyncio.run(outage(fleet, way, seed))
                    rows.append(f"| {name}: {row.removeprefix('| ')}")
                    print(rows[-1], flush=True)
    print("\n".join(["", HEADER, *rows]))


def _fleet(balancer: str) -> Fleet:
    return Fleet(default_model(), _SERVERS, balancer, kv_cache_tokens=_KV_CACHE_TOKENS, prometheus=False)


def main() -> int:
    """Measure, print Markdown tables and return the exit status."""
    options = _parser().parse_args()
    end_like_ctrl_c()
    try:
        if options.only != "outages":
            _routing(options)
        if options.only != "routing":
            _outages(options)
    except KeyboardInterrupt:
        return 130
    except LauncherError as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
