"""The options of the command line."""

import argparse
import ipaddress
import re
from collections.abc import Callable
from pathlib import Path

from inflight_client import Prefill
from inflight_client.fleet.addresses import split_url
from inflight_client.fleet.balance import BALANCES
from inflight_client.options import metrics_url_of, parse_url
from inflight_gateway.formats import AUTO, NONE
from inflight_gateway.keys import KeyRing
from inflight_gateway.reasoning import REASONING_FORMATS
from inflight_gateway.settings import Settings
from inflight_gateway.tool_formats import FORMATS

_SERVER = "127.0.0.1:8001"


def make_parser(description: str | None) -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(prog="inflight-gateway", description=description)
    _add_servers(parser)
    _add_endpoint(parser)
    _add_limits(parser)
    parser.add_argument(
        "--otlp-traces-endpoint",
        metavar="URL",
        help="where the OpenTelemetry spans of requests go, by OTLP over HTTP, such as http://127.0.0.1:4318; if not "
        "given, there are none",
    )
    _add_formats(parser)
    return parser


def settings_of(options: argparse.Namespace) -> Settings:
    """Return the settings that the options mean.

    Raises:
        ValueError: an option is invalid; the message names it.
        OSError: a file cannot be read.
    """
    servers = split_url(",".join(options.server or [_SERVER]))
    addresses = [parse_url(server, None)[1] for server in servers]
    if options.api_keys is None and not _is_loopback(options.host):
        raise ValueError(f"--host is {options.host}; without --api-keys it must be a loopback address")
    if options.max_total_body_bytes < options.max_body_bytes:
        raise ValueError(
            f"--max-total-body-bytes is {options.max_total_body_bytes}; "
            f"it must be at least --max-body-bytes, {options.max_body_bytes}"
        )
    if options.otlp_traces_endpoint and not options.otlp_traces_endpoint.startswith(("http://", "https://")):
        raise ValueError(
            f"--otlp-traces-endpoint is {options.otlp_traces_endpoint}; it must begin with http:// or https://"
        )
    return Settings(
        server=",".join(servers),
        balance=options.balance,
        metrics_urls=options.metrics_url or [metrics_url_of(address) for address in addresses],
        model=options.model,
        served_model_name=options.served_model_name or options.model,
        prefill=_prefill(options),
        allowed_origins=options.allowed_origin or (),
        keys=None if options.api_keys is None else KeyRing.read(options.api_keys),
        max_concurrent_requests=options.max_concurrent_requests,
        max_concurrent_samples=options.max_concurrent_samples,
        max_body_bytes=options.max_body_bytes,
        max_total_body_bytes=options.max_total_body_bytes,
        request_timeout=options.request_timeout,
        otlp_traces_endpoint=options.otlp_traces_endpoint,
        tool_format=options.tool_format,
        reasoning_format=options.reasoning_format,
    )


def _add_servers(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--server",
        action="append",
        metavar="HOST:PORT",
        help=f"the Triton server's gRPC endpoint; several servers can be given (default: {_SERVER})",
    )
    parser.add_argument(
        "--metrics-url",
        action="append",
        metavar="URL",
        help="Triton's metrics, once for each server; if not given, port 8002 of the servers' hosts",
    )
    parser.add_argument(
        "--balance",
        choices=BALANCES,
        default="prefix",
        help="which of several servers gets a request: one that knows the beginning of the prompt, unless it is too "
        "busy; the one with the fewest requests; or each in turn (default: %(default)s)",
    )
    parser.add_argument(
        "--prefill-server",
        action="append",
        metavar="HOST:PORT",
        help="the gRPC endpoint of a server that computes long prompts, which the other servers continue; several can "
        "be given",
    )
    parser.add_argument(
        "--prefill-min-tokens",
        type=_number(int, 0, 2**31),
        default=256,
        metavar="N",
        help="shorter prompts do not go to a prefill server; 4 characters of a text or a chat count as a token "
        "(default: %(default)s)",
    )


def _add_endpoint(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address to listen on; a non-loopback address needs --api-keys (default: %(default)s)",
    )
    parser.add_argument(
        "--port", type=_number(int, 1, 65535), default=9000, help="port to listen on (default: %(default)s)"
    )
    parser.add_argument("--model", default="llm", help="the model's name in Triton (default: %(default)s)")
    parser.add_argument(
        "--served-model-name", metavar="NAME", help="the model's name for clients; if not given, its name in Triton"
    )
    parser.add_argument(
        "--allowed-origin",
        action="append",
        type=_origin,
        metavar="URL",
        help="let scripts of web pages from this origin, such as https://chat.example.com, send requests; several can "
        "be given, and * means all (default: none)",
    )
    parser.add_argument("--api-keys", type=Path, metavar="FILE", help="TOML file of the accepted API keys")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-concurrent-requests",
        type=_number(int, 1, 65536),
        default=512,
        metavar="N",
        help="limit on requests at once; the gateway answers further ones with 429 (default: %(default)s)",
    )
    parser.add_argument(
        "--max-concurrent-samples",
        type=_number(int, 1, 2**20),
        default=2048,
        metavar="N",
        help="limit on samples at once, prompts times n of each request; the gateway answers further ones with 429 "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--max-body-bytes",
        type=_number(int, 1, 2**30),
        default=4 * 2**20,
        metavar="N",
        help="limit on the size of a body; the gateway answers larger ones with 413 (default: %(default)s)",
    )
    parser.add_argument(
        "--max-total-body-bytes",
        type=_number(int, 1, 2**40),
        default=64 * 2**20,
        metavar="N",
        help="limit on the size of the bodies of all requests; the gateway answers further requests with 429 "
        "(default: %(default)s)",
    )
    parser.add_argument(
        "--request-timeout",
        type=_number(float, 0.001, 86400),
        default=600.0,
        metavar="SECONDS",
        help="time limit for a whole answer (default: %(default)s)",
    )


def _add_formats(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tool-format",
        choices=[AUTO, *sorted(FORMATS)],
        default=AUTO,
        help="how the model writes tool calls; auto finds it from the model's chat template (default: %(default)s)",
    )
    parser.add_argument(
        "--reasoning-format",
        choices=[AUTO, NONE, *sorted(REASONING_FORMATS)],
        default=AUTO,
        help="how the model writes thoughts, which the gateway splits from the answer; none leaves them in it "
        "(default: %(default)s)",
    )


def _number(kind: type[int] | type[float], low: float, high: float) -> Callable[[str], float]:
    """Return a function that reads a number and checks its bounds; for argparse."""

    def read(text: str) -> float:
        value = kind(text)  # argparse turns a ValueError into a message.
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"it is {text}; it must be at least {low} and at most {high}")
        return value

    read.__name__ = "number"
    return read


def _origin(text: str) -> str:
    """Check a URL without a path; for argparse."""
    if text != "*" and not re.fullmatch(r"https?://[^/]+", text):
        raise argparse.ArgumentTypeError(f"it is {text}; it must be like https://chat.example.com, without a path")
    return text


def _prefill(options: argparse.Namespace) -> Prefill | None:
    """Raises ValueError if an option is invalid."""
    if not options.prefill_server:
        return None
    servers = split_url(",".join(options.prefill_server))
    for server in servers:
        parse_url(server, None)
    return Prefill(url=",".join(servers), min_tokens=options.prefill_min_tokens)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # Another host name, which may resolve to any address.
        return False
