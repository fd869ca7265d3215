"""Options that several commands share."""

import argparse
import os
import ssl
from pathlib import Path
from typing import TypedDict, cast

import httpx

from inflight_cli.errors import CommandError, check_text
from inflight_client import TLS, Sampling, Timeouts, TransportError
from inflight_client.fleet.addresses import is_dns_name, resolve, split_url
from inflight_client.options import LARGEST_PORT, check_header, connection_options, parse_url

DEFAULT_URL = "127.0.0.1:8001"


class ConnectionSettings(TypedDict):
    """Keyword arguments of `Client` and `AsyncClient`."""

    url: str
    model: str
    headers: dict[str, str]
    tls: TLS | None


def add_connection_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the connection to the server."""
    group = parser.add_argument_group("server")
    group.add_argument(
        "--url",
        default=os.environ.get("INFLIGHT_URL") or DEFAULT_URL,
        help="host and port, with the prefix grpc://, grpcs://, http:// or https://; without a prefix: gRPC; several "
        "servers are separated by commas "
        f"(default: the environment variable INFLIGHT_URL, or {DEFAULT_URL})",
    )
    group.add_argument("--model", default="llm", help="name of the model (%(default)s)")
    group.add_argument(
        "--header",
        type=_header,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="header of every call; can be repeated",
    )
    group.add_argument(
        "--ca",
        type=readable_file,
        metavar="FILE",
        help="PEM file of certificates to trust instead of the system's",
    )


def add_metrics_option(parser: argparse.ArgumentParser) -> None:
    """Add the option for the address of the metrics."""
    parser.add_argument(
        "--metrics-url",
        type=http_url,
        metavar="URL",
        help="address of the metrics (default: port 8002 of the server's host)",
    )


def add_sampling_options(parser: argparse.ArgumentParser, *, max_tokens: int | None = None) -> None:
    """Add the sampling options. The model's own defaults apply to all options but `max_tokens`."""
    group = parser.add_argument_group("sampling (default: the model's own settings)")
    limit = "maximum number of tokens to generate" + ("" if max_tokens is None else f" ({max_tokens})")
    group.add_argument("--max-tokens", type=int, default=max_tokens, metavar="N", help=limit)
    group.add_argument("--temperature", type=float, metavar="T", help="0 always chooses the likeliest token")
    group.add_argument(
        "--top-p", type=float, metavar="P", help="sample from the likeliest tokens that add up to probability P"
    )
    group.add_argument("--top-k", type=int, metavar="K", help="sample from the K likeliest tokens")
    group.add_argument("--seed", type=int, metavar="N", help="the same seed gives the same text")
    group.add_argument("--stop", action="append", metavar="TEXT", help="stop before this text; can be repeated")
    group.add_argument("--lora-name", metavar="NAME", help="answer with this LoRA adapter of the model")


def connection_settings(options: argparse.Namespace) -> ConnectionSettings:
    """Read the options of `add_connection_options`.

    Raises:
        ValueError: the URL is invalid, or it is not encrypted although `--ca` is given.
        CommandError: the URL or the model's name is not UTF-8, or `--ca` has no certificate.
    """
    check_text(options.url, "--url")
    check_text(options.model, "--model")
    tls = None if options.ca is None else TLS(root_certificates=options.ca)
    for url in split_url(options.url):
        parse_url(url, tls)
    if options.ca is not None:
        _check_certificates(options.ca)
    return {"url": options.url, "model": options.model, "headers": dict(options.header), "tls": tls}


def check_one_server(options: argparse.Namespace) -> None:
    """Check that the URL names one server, for commands that ask a server about itself.

    Raises:
        CommandError: it names several, or is a name with several addresses.
    """
    if "," in options.url:
        raise CommandError(f"--url is {options.url}; it must be one server for this command")
    _, named = connection_options(options.url, options.connection["tls"], None, Timeouts())
    if not is_dns_name(named):
        return
    try:
        addresses = [found.address for found in resolve(named)]
    except TransportError:
        return  # The command says it in its own way when it asks the server.
    if len(addresses) > 1:
        raise CommandError(
            f"--url is {options.url}, which has the addresses {', '.join(addresses)}; it must be one server for this "
            "command"
        )


def sampling_parameters(options: argparse.Namespace) -> Sampling:
    """Read the options of `add_sampling_options` that were given."""
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop", "lora_name")
    given = {name: getattr(options, name) for name in names}
    return cast(Sampling, {name: value for name, value in given.items() if value is not None})


def readable_file(text: str) -> Path:
    """Read the path of an existing file; for argparse."""
    path = Path(text)
    if not path.is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text!r}")
    return path


def http_url(text: str) -> str:
    """Read an address that begins with http:// or https://; for argparse."""
    try:
        url = httpx.URL(text)
    except (httpx.InvalidURL, UnicodeError) as error:
        raise argparse.ArgumentTypeError(f"{text!r} is not a URL: {error}") from None
    if url.scheme not in ("http", "https") or not url.host:
        raise argparse.ArgumentTypeError(f"{text!r} must begin with http:// or https://, and name a host")
    return text


def positive(text: str) -> int:
    """Read a whole number greater than 0; for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number over 0")
    return int(text)


def port(text: str) -> int:
    """Read the number of a port; for argparse."""
    number = positive(text)
    if number > LARGEST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port; it must be at most {LARGEST_PORT}")
    return number


def _check_certificates(path: Path) -> None:
    try:
        ssl.create_default_context(cafile=path)
    except OSError as error:
        raise CommandError(f"--ca is {path}, from which no certificate can be read: {error}") from None


def _header(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not name or not separator:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form NAME=VALUE")
    try:
        check_header(name, value)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return name, value
