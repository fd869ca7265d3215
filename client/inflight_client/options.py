"""Settings of a client: how it connects and how long it waits."""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from inflight_client.errors import DeadlineExceeded, TransportError

_LONGEST = 1_000_000
"""Maximum of each timeout, over 11 days. Waits on locks and gRPC's deadlines overflow with much more, and gRPC keeps
some of its settings as milliseconds in 32 bits."""

LARGEST_PORT = 65535

_HEADER_NAME = re.compile("[A-Za-z0-9_.-]+")
_HEADER_VALUE = re.compile("[ -~]*")


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Maximum waiting times in seconds, each over 0 and at most 1,000,000.

    Raises:
        ValueError: a timeout is out of its bounds.
    """

    connect: float = 5.0
    """Time to connect to the server."""
    first_token: float = 120.0
    """Time from sending to the first response, for each attempt. `generate` has only one response, the whole answer, so
    only `total` applies to it."""
    between_tokens: float = 120.0
    """Time between two responses of a stream, after the first. A stream that stalls for longer is cancelled."""
    total: float = 600.0
    """Time for the whole request, including all attempts and the waits between them. The client also sends it to the
    server as the deadline."""
    unreachable: float | None = 4.0
    """Time after which the attempts that wait for a server end with TransportError if nothing comes from it: no
    response, and no answer to either of two health checks, which the client sends meanwhile. A server that computes for
    long answers them. None: never."""

    def __post_init__(self) -> None:
        for name in ("connect", "first_token", "between_tokens", "total"):
            if not 0 < getattr(self, name) <= _LONGEST:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be over 0 and at most {_LONGEST} seconds")
        if self.unreachable is not None and not 0 < self.unreachable <= _LONGEST:
            raise ValueError(
                f"unreachable is {self.unreachable}; it must be over 0 and at most {_LONGEST} seconds, or None"
            )


class TimeLimits(NamedTuple):
    """The time limits of one attempt in seconds, counted from its start except for `gap`."""

    first: float
    """To the first response."""
    gap: float
    """From one response to the next."""
    total: float
    """To the end."""

    def nothing_came(self, *, begun: bool) -> DeadlineExceeded:
        """Return the error for a response that did not come in time. `begun`: there was one before."""
        if begun:
            return DeadlineExceeded(f"the stream stalled: nothing came for {self.gap} s")
        return DeadlineExceeded(f"nothing came within {self.first} s")


@dataclass(frozen=True, kw_only=True)
class TLS:
    """Encryption and, with a certificate chain, the identity of the client. All files are in PEM format."""

    root_certificates: Path | None = None
    """Certificates to trust instead of the system's."""
    private_key: Path | None = None
    certificate_chain: Path | None = None

    def __post_init__(self) -> None:
        if (self.private_key is None) != (self.certificate_chain is None):
            raise ValueError("private_key and certificate_chain go together")


@dataclass(frozen=True)
class Options:
    """The settings of a connection."""

    address: str
    """Host and port."""
    tls: TLS | None
    headers: Mapping[str, str]
    """Headers of every call, such as authentication or the keys of Triton's restricted protocols."""
    connect_timeout: float
    unreachable: float
    """Seconds of silence after which the server is given up; infinite: never."""
    authority: str | None = None
    """The host and port that the server, or a proxy before it, is told. None: the address."""

    def no_answer(self) -> TransportError:
        """Return the error of a call to a server that was given up."""
        return TransportError(
            f"{self.address} does not answer: nothing came from it for {self.unreachable} s, not even an answer to a "
            "health check"
        )


def parse_url(url: str, tls: TLS | None) -> tuple[str, str, TLS | None]:
    """Split a URL of the form [grpc:// | grpcs:// | http:// | https://]host:port.

    Returns the transport, the host and port, and the encryption.

    Raises:
        ValueError: the URL has another scheme, a path or no valid port, or `tls` is given and the URL is not encrypted.
    """
    scheme, separator, address = url.rpartition("://")
    scheme = scheme if separator else "grpc" if tls is None else "grpcs"
    if scheme not in ("grpc", "grpcs", "http", "https"):
        raise ValueError(f"the URL {url!r} has the scheme {scheme!r}; it must be grpc, grpcs, http or https")
    if not address.rstrip("/") or "/" in address.rstrip("/"):
        raise ValueError(f"the URL {url!r} must be a host and a port, without a path")
    _, has_port, port = address.rstrip("/").rpartition(":")
    if has_port and port.isdecimal() and int(port) > LARGEST_PORT:
        # gRPC would connect to another port: to the number without the bits that a port does not have.
        raise ValueError(f"the URL {url!r} has the port {port}; it must be at most {LARGEST_PORT}")
    encrypted = scheme in ("grpcs", "https")
    if tls is not None and not encrypted:
        raise ValueError(f"the URL {url!r} is not encrypted, but tls is given; it must begin with {scheme}s://")
    return scheme.removesuffix("s"), address.rstrip("/"), (tls or TLS()) if encrypted else None


def check_header(name: str, value: str) -> None:
    """Raise ValueError unless a header can be sent. The message does not show the value, which may be secret."""
    if not _HEADER_NAME.fullmatch(name):
        raise ValueError(f"the header name {name!r} must consist of letters, digits and the characters _ . -")
    if not _HEADER_VALUE.fullmatch(value):
        raise ValueError(f"the value of the header {name!r} must consist of printable ASCII characters")


def connection_options(
    url: str, tls: TLS | None, headers: Mapping[str, str] | None, timeouts: Timeouts
) -> tuple[str, Options]:
    """Return the transport and the options that a client's arguments give.

    Raises:
        ValueError: what `parse_url` or `check_header` says.
    """
    transport, address, tls = parse_url(url, tls)
    for name, value in (headers or {}).items():
        check_header(name, value)
    unreachable = math.inf if timeouts.unreachable is None else timeouts.unreachable
    return transport, Options(address, tls, dict(headers or {}), timeouts.connect, unreachable)


def metrics_url_of(address: str) -> str:
    """Triton's default address for metrics."""
    host, _, port = address.rpartition(":")
    # The last colon of an IPv6 address without a port is inside its brackets.
    return f"http://{address if not host or port.endswith(']') else host}:8002/metrics"


def within(timeouts: Timeouts, total: float | None) -> Timeouts:
    """Return the timeouts with `total` replaced, if it is given."""
    return timeouts if total is None else replace(timeouts, total=total)


def check_concurrency(concurrency: int) -> None:
    """Raise ValueError unless at least one request may run."""
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
