"""The servers that a client's URL names."""

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import replace

from inflight_client.errors import TransportError
from inflight_client.options import Options


def split_url(url: str) -> list[str]:
    """Return the URLs in a list such as "grpc://h1:8001,h2:8001". The first scheme goes for the rest of the list.

    Raises:
        ValueError: a URL is missing, or two have different schemes.
    """
    parts = [part.strip() for part in url.split(",")]
    if not all(parts):
        raise ValueError(f"the URL {url!r} has an empty part; it must be a list of servers, separated by commas")
    scheme, separator, _ = parts[0].rpartition("://")
    for part in parts[1:]:
        other, given, _ = part.rpartition("://")
        if given and (other, given) != (scheme, separator):
            raise ValueError(f"the URL {url!r} has several schemes; all of its servers must have the same")
    urls = [part if "://" in part else f"{scheme}{separator}{part}" for part in parts]
    if len(set(urls)) < len(urls):
        raise ValueError(f"the URL {url!r} names a server twice")
    return urls


def is_dns_name(options: Options) -> bool:
    """Whether a server's host may have several addresses.

    Names of encrypted servers count as one: their certificates are for the name. So do names without a port.
    """
    host, port = _host_and_port(options.address)
    if options.tls is not None or host == "localhost" or not port:
        return False
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return True
    return False


class AddressBook:
    """The addresses of the servers that a URL names."""

    def __init__(self, named: Sequence[Options]) -> None:
        self._named = named
        self._found: dict[str, list[Options]] = {}
        """The last addresses of each name."""
        self.has_names = any(map(is_dns_name, named))
        """Whether there are names to look up."""

    def look_up(self) -> dict[str, Options]:
        """Look the names up, and return the options of each address. This may take seconds.

        A name that cannot be resolved now keeps its last addresses, and does not concern the other names.

        Raises:
            TransportError: no address is known.
        """
        error: TransportError | None = None
        for named in self._named:
            try:
                self._found[named.address] = resolve(named) if is_dns_name(named) else [named]
            except TransportError as caught:
                error = caught
        if error is not None and not self._found:
            raise error
        return {options.address: options for found in list(self._found.values()) for options in found}


def resolve(options: Options) -> list[Options]:
    """Look a DNS name up, and return the options of each of its addresses. This may take seconds.

    If there are IPv4 addresses, those of IPv6 are left out: most often they are other addresses of the same servers.

    Raises:
        TransportError: the name cannot be resolved.
    """
    host, port = _host_and_port(options.address)
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise TransportError(f"the address of {options.address} is unknown: {error}") from error
    families = {entry[0] for entry in found}
    kept = [entry for entry in found if entry[0] == socket.AF_INET or socket.AF_INET not in families]
    hosts = sorted({str(entry[4][0]) for entry in kept})
    addresses = [f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in hosts]
    return [replace(options, address=address, authority=options.address) for address in addresses]


def _host_and_port(address: str) -> tuple[str, str]:
    host, separator, port = address.rpartition(":")
    return (host, port) if separator and not port.endswith("]") else (address, "")
