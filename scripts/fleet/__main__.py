"""`make fleet`: start several servers with small KV caches, a load balancer and Prometheus on loopback.

It shows how they work together; on one machine they are not faster than one server.
"""

import argparse
import contextlib
import signal
import sys

from scripts.fleet.fleet import BALANCERS, Fleet
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.signals import end_like_ctrl_c


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--servers", type=int, default=3, metavar="N", help="number of servers (%(default)s)")
    parser.add_argument("--balancer", choices=BALANCERS, default="haproxy", help="what is in front (%(default)s)")
    parser.add_argument("--kv-cache-tokens", type=int, default=8192, metavar="N", help="of each server (%(default)s)")
    parser.add_argument("--no-prometheus", action="store_true", help="start no Prometheus")
    return parser


def _where(fleet: Fleet, *, prometheus: bool) -> str:
    lines = []
    if fleet.openai_url is not None:
        lines.append(f"OpenAI's API, balanced   {fleet.openai_url}/v1")
    if fleet.grpc_url is not None:
        lines.append(f"KServe's gRPC, balanced  {fleet.grpc_url}")
    lines.append(f"the servers, for the client library and `inflight --url`:  {fleet.grpc_urls}")
    lines += [
        f"{member.name}'s gateway          {url}" for member, url in zip(fleet.members, fleet.gateway_urls, strict=True)
    ]
    if prometheus:
        lines.append(f"Prometheus               http://127.0.0.1:{fleet.prometheus_port}")
    return "\n".join(["Ready:", *lines, "Ctrl-C stops all."])


def main() -> int:
    """Run until a signal arrives, and return the exit status. If it is 1, a line on standard error says why."""
    options = _parser().parse_args()
    end_like_ctrl_c()
    try:
        with Fleet(
            default_model(),
            options.servers,
            options.balancer,
            kv_cache_tokens=options.kv_cache_tokens,
            prometheus=not options.no_prometheus,
        ) as fleet:
            print(_where(fleet, prometheus=not options.no_prometheus), flush=True)
            _wait_for_signal()
    except LauncherError as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    except KeyboardInterrupt:  # before it was ready, or a second one
        return 130
    return 0


def _wait_for_signal() -> None:
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()


if __name__ == "__main__":
    sys.exit(main())
