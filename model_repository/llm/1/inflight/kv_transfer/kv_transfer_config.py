"""The setting `kv_transfer_config`, with vLLM's names."""

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inflight.json_setting import read_json_setting

SHARED_MEMORY = "shared_memory"
TCP = "tcp"
NIXL = "nixl"
CONNECTORS = (SHARED_MEMORY, TCP, NIXL)

PRODUCER = "kv_producer"
CONSUMER = "kv_consumer"
BOTH = "kv_both"
ROLES = (PRODUCER, CONSUMER, BOTH)

LOOPBACK = ("127.0.0.0/8", "::1/128")

_LONGEST_SECONDS = 3600


@dataclass(frozen=True, kw_only=True)
class KVTransferConfig:
    """How prompts that one engine computed go on in another one.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    kv_connector: str = SHARED_MEMORY
    """`shared_memory` between engines of one user on one host; `tcp`, which also works between hosts; or `nixl`, which
    reads the other host's memory by RDMA where there are such cards, and needs the package `nixl-cu12`."""

    kv_role: str | None = None
    """`kv_producer` computes prompts for others, `kv_consumer` goes on with them, and `kv_both` does either. Each
    request says what it wants. Default: nothing is transferred."""

    kv_ip: str = "127.0.0.1"
    """Address at which a producer listens, and where consumers find it. For `tcp` and `nixl`."""

    kv_port: int = 0
    """Port at which a producer listens; 0: any free one. For `tcp` and `nixl`."""

    kv_buffer_size: float = 1e9
    """How many bytes of exported prompts may wait for consumers, and how many bytes of fetched ones may wait for their
    first step. What does not fit is computed instead."""

    kv_connector_extra_config: Mapping[str, Any] = field(default_factory=dict)
    """Values that vLLM has no names for: `export_timeout`, seconds until an export that nobody fetches is dropped,
    60 if not given; `fetch_timeout`, seconds after which a consumer computes a prompt instead, 2 if not given; and
    `peers`, the networks in which a consumer may fetch, the loopback ones if not given."""

    def __post_init__(self) -> None:
        for name, known in (("kv_connector", CONNECTORS), ("kv_role", (None, *ROLES))):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"kv_transfer_config: {name} is {getattr(self, name)!r}; "
                    f"it must be one of {', '.join(one for one in known if one)}"
                )
        _network("kv_ip", self.kv_ip, ipaddress.ip_address)
        if isinstance(self.kv_port, bool) or not isinstance(self.kv_port, int) or not 0 <= self.kv_port <= 65535:
            raise ValueError(f"kv_transfer_config: kv_port is {self.kv_port!r}; it must be a number from 0 to 65535")
        _positive("kv_buffer_size", self.kv_buffer_size, 1 << 50)
        if not isinstance(self.kv_connector_extra_config, Mapping):
            raise ValueError(
                f"kv_transfer_config: kv_connector_extra_config is {self.kv_connector_extra_config!r}; "
                "it must be an object"
            )
        for name in self.kv_connector_extra_config:
            if name not in _EXTRA:
                raise ValueError(
                    f"kv_transfer_config: kv_connector_extra_config has {name!r}; it may have {', '.join(_EXTRA)}"
                )
        for name in ("export_timeout", "fetch_timeout"):
            _positive(name, self._extra(name), _LONGEST_SECONDS)
        peers = self._extra("peers")
        if isinstance(peers, str) or not isinstance(peers, Sequence):
            raise ValueError(f"kv_transfer_config: peers is {peers!r}; it must be a list of networks")
        for peer in peers:
            _network("peers", peer, ipaddress.ip_network)

    def _extra(self, name: str) -> Any:
        return self.kv_connector_extra_config.get(name, _EXTRA[name])

    @property
    def produces(self) -> bool:
        """Whether prompts are computed for others."""
        return self.kv_role in (PRODUCER, BOTH)

    @property
    def consumes(self) -> bool:
        """Whether prompts of others may go on here."""
        return self.kv_role in (CONSUMER, BOTH)

    @property
    def export_timeout(self) -> float:
        """Seconds until an export that nobody fetches is dropped."""
        return float(self._extra("export_timeout"))

    @property
    def fetch_timeout(self) -> float:
        """Seconds after which a prompt is computed instead of fetched."""
        return float(self._extra("fetch_timeout"))

    def may_fetch_from(self, host: str) -> bool:
        """Return whether an address, given in digits, is in a network of `peers`."""
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return False
        return any(address in ipaddress.ip_network(peer, strict=False) for peer in self._extra("peers"))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> "KVTransferConfig":
        """Return the config with these values.

        Raises:
            ValueError: as above, or a name is unknown.
        """
        return read_json_setting(cls, "kv_transfer_config", values)


_EXTRA = {"export_timeout": 60.0, "fetch_timeout": 2.0, "peers": LOOPBACK}


def _network(name: str, value: object, read: Any) -> None:
    try:
        if not isinstance(value, str):
            raise ValueError("it is no text")
        read(value, strict=False) if read is ipaddress.ip_network else read(value)
    except ValueError:
        raise ValueError(
            f"kv_transfer_config: {name} has {value!r}; it must be an address of IPv4 or IPv6 in digits, "
            "such as 10.0.0.7, or for peers a network, such as 10.0.0.0/24"
        ) from None


def _positive(name: str, value: object, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise ValueError(f"kv_transfer_config: {name} is {value!r}; it must be over 0 and at most {most}")
