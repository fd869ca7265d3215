"""How a client connects, and how long it waits."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Timeouts:
    """Bounds in seconds.

    Raises:
        ValueError: one is not over 0.
    """

    connect: float = 5.0
    """To reach the server."""
    first_token: float = 120.0
    """From sending, of each attempt, to the first response. For `generate` that is the whole answer, so only `total`
    holds there."""
    total: float = 600.0
    """For the whole request, attempts and waits between them included; also sent to the server as its deadline."""

    def __post_init__(self) -> None:
        for name in ("connect", "first_token", "total"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be over 0 seconds")


@dataclass(frozen=True, kw_only=True)
class TLS:
    """Encryption and, with a certificate of its own, the client's identity; files in PEM."""

    root_certificates: Path | None = None
    """Whom to trust instead of the system's."""
    private_key: Path | None = None
    certificate_chain: Path | None = None

    def __post_init__(self) -> None:
        if (self.private_key is None) != (self.certificate_chain is None):
            raise ValueError("private_key and certificate_chain go together")


@dataclass(frozen=True)
class Options:
    """All that a connection needs to know."""

    address: str
    """Host and port."""
    tls: TLS | None
    headers: Mapping[str, str]
    """Sent with every call: authentication, or the keys of Triton's restricted protocols."""
    connect_timeout: float


def parse_url(url: str, tls: TLS | None) -> tuple[str, str, TLS | None]:
    """Transport, host and port, and encryption that a URL stands for: [grpc:// | grpcs:// | http:// | https://]host:port.

    Raises:
        ValueError: another scheme, a path, or TLS settings for an address without.
    """
    scheme, separator, address = url.rpartition("://")
    scheme = scheme if separator else "grpc" if tls is None else "grpcs"
    if scheme not in ("grpc", "grpcs", "http", "https"):
        raise ValueError(f"the URL {url!r} has the scheme {scheme!r}; it must be grpc, grpcs, http or https")
    if not address.rstrip("/") or "/" in address.rstrip("/"):
        raise ValueError(f"the URL {url!r} must be a host and a port, without a path")
    encrypted = scheme in ("grpcs", "https")
    if tls is not None and not encrypted:
        raise ValueError(f"the URL {url!r} is not encrypted, but tls is given; it must begin with {scheme}s://")
    return scheme.removesuffix("s"), address.rstrip("/"), (tls or TLS()) if encrypted else None


def connection_options(
    url: str, tls: TLS | None, headers: Mapping[str, str] | None, timeouts: Timeouts
) -> tuple[str, Options]:
    """Transport, and all else that a client's arguments say of its connection; raises what `parse_url` raises."""
    transport, address, tls = parse_url(url, tls)
    return transport, Options(address, tls, dict(headers or {}), timeouts.connect)


def metrics_url_of(address: str) -> str:
    """Where Triton has its metrics unless told otherwise."""
    return f"http://{address.rpartition(':')[0] or address}:8002/metrics"


def within(timeouts: Timeouts, total: float | None) -> Timeouts:
    """The timeouts with another total, if one is given."""
    return timeouts if total is None else replace(timeouts, total=total)
