"""Options that several commands share."""

import argparse
import os
from pathlib import Path
from typing import TypedDict, cast

from inflight_client import TLS, Sampling
from inflight_client.options import parse_url

DEFAULT_URL = "127.0.0.1:8001"


class ConnectionSettings(TypedDict):
    """What `Client` and `AsyncClient` want to know of a server."""

    url: str
    model: str
    headers: dict[str, str]
    tls: TLS | None


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Where the server is, and how to talk to it."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        default=os.environ.get("INFLIGHT_URL") or DEFAULT_URL,
        help="host and port, after grpc:// (or nothing), grpcs://, http:// or https:// "
        f"(the variable INFLIGHT_URL, or {DEFAULT_URL})",
    )
    group.add_argument("--model", default="llm", help="name of the model (%(default)s)")
    group.add_argument(
        "--header",
        type=_header,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="sent with every call; may be given again",
    )
    group.add_argument(
        "--ca", type=readable_file, metavar="FILE", help="certificates (PEM) to trust instead of the system's"
    )


def add_metrics_option(parser: argparse.ArgumentParser) -> None:
    """Where the metrics are."""
    parser.add_argument("--metrics-url", metavar="URL", help="where the metrics are (port 8002 of the server's host)")


def add_sampling_options(parser: argparse.ArgumentParser, *, max_tokens: int | None = None) -> None:
    """How the text is to be made; what nobody gives is the model's own default, but for `max_tokens`."""
    group = parser.add_argument_group("sampling (the model's own defaults otherwise)")
    most = "most tokens to generate" if max_tokens is None else f"most tokens to generate ({max_tokens})"
    group.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N", help=most)
    group.add_argument("--temperature", type=float, metavar="T", help="0 takes the likeliest token")
    group.add_argument("--top-p", type=float, metavar="P", help="draw from the likeliest tokens of this probability")
    group.add_argument("--top-k", type=int, metavar="K", help="draw from so many likeliest tokens")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    group.add_argument("--stop", action="append", metavar="TEXT", help="ends the text; may be given again")


def connection_settings(options: argparse.Namespace) -> ConnectionSettings:
    """What the options of `add_connection_options` say.

    Raises:
        ValueError: the URL is none, or not encrypted although `--ca` is given.
    """
    tls = None if options.ca is None else TLS(root_certificates=options.ca)
    parse_url(options.url, tls)
    return {"url": options.url, "model": options.model, "headers": dict(options.header), "tls": tls}


def sampling_parameters(options: argparse.Namespace) -> Sampling:
    """Those options of `add_sampling_options` that were given."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
    given = {name: getattr(options, name) for name in names}
    return cast(Sampling, {name: value for name, value in given.items() if value is not None})


def readable_file(text: str) -> Path:
    """A file that is there; for argparse."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def positive(text: str) -> int:
    """A whole number over 0; for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number over 0")
    return int(text)


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    return name, value
