"""Decides what a client's URL needs: one connection, or those of a fleet."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from inflight_client.fleet.addresses import is_dns_name, split_url
from inflight_client.fleet.balance import BALANCES, Balance
from inflight_client.options import TLS, Options, Timeouts, connection_options

_C = TypeVar("_C")


@dataclass(frozen=True)
class Servers(Generic[_C]):
    """The servers that a URL names, and how to connect to one."""

    named: list[Options]
    connect: Callable[[Options], _C]
    balance: Balance

    @property
    def are_one(self) -> bool:
        """Whether it is one address for certain."""
        return len(self.named) == 1 and not is_dns_name(self.named[0])


def servers_of(
    url: str,
    tls: TLS | None,
    headers: Mapping[str, str] | None,
    timeouts: Timeouts,
    balance: str,
    transports: Mapping[str, Callable[[Options], _C]],
) -> Servers[_C]:
    """Read the arguments of a client.

    Raises:
        ValueError: the URL, a header or `balance` is invalid, or `tls` is given and the URL is not encrypted.
    """
    if balance not in BALANCES:
        raise ValueError(f"balance is {balance!r}; it must be one of {', '.join(BALANCES)}")
    read = [connection_options(part, tls, headers, timeouts) for part in split_url(url)]
    (transport, _), *_ = read
    return Servers([options for _, options in read], transports[transport], BALANCES[balance]())
