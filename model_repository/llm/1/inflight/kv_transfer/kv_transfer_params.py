"""The request field `kv_transfer_params`: what a request wants of another engine, or offers to it."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from inflight.errors import InvalidRequest

_HEX = re.compile("[0-9a-f]{32}")
_MAX_TOKENS = 2**31


@dataclass(frozen=True, kw_only=True, slots=True)
class KVTransferParams:
    """vLLM's two calls. The first asks for `do_remote_decode`. Its answer has the params of the second.

    Raises:
        InvalidRequest: a value is invalid; the message names it.
    """

    do_remote_decode: bool = False
    """Another engine will go on with this prompt: export its keys and values."""
    do_remote_prefill: bool = False
    """Another engine has computed this prompt: fetch its keys and values. The other values say where."""
    remote_engine_id: str | None = None
    remote_request_id: str | None = None
    """A name of the export that nobody can guess."""
    remote_host: str | None = None
    """Address in digits; None: shared memory."""
    remote_port: int | None = None
    num_tokens: int | None = None
    """How many tokens of the prompt have keys and values."""
    fingerprint: str | None = None
    """What the engines must have in common, see `model.cache.layout`."""

    def __post_init__(self) -> None:
        for name in ("do_remote_decode", "do_remote_prefill"):
            if not isinstance(getattr(self, name), bool):
                raise _invalid(name, getattr(self, name), "true or false")
        if self.do_remote_decode and self.do_remote_prefill:
            raise InvalidRequest(
                "kv_transfer_params has do_remote_decode and do_remote_prefill; at most one of them may be true"
            )
        if not self.do_remote_prefill:
            return
        for name in ("remote_engine_id", "remote_request_id", "fingerprint"):
            value = getattr(self, name)
            if not isinstance(value, str) or not _HEX.fullmatch(value):
                raise _invalid(name, value, "32 digits from 0-9 and a-f")
        if self.remote_host is not None and not isinstance(self.remote_host, str):
            raise _invalid("remote_host", self.remote_host, "an address")
        _check_number("num_tokens", self.num_tokens, _MAX_TOKENS)
        if self.remote_host is not None:
            _check_number("remote_port", self.remote_port, 65535)

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "KVTransferParams":
        """Read the field of a request. Null counts as not given, and so does any other key that is null.

        Raises:
            InvalidRequest: as above, or a key is unknown.
        """
        known = cls.__dataclass_fields__
        values = {name: value for name, value in given.items() if value is not None}
        for name in values:
            if name not in known:
                raise InvalidRequest(f"kv_transfer_params has the key {name!r}; it may have {', '.join(known)}")
        return cls(**values)

    def as_dict(self) -> dict[str, Any]:
        """Return the field as a client gets it, and sends it with its second call."""
        return asdict(self)


def _check_number(name: str, value: object, most: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise _invalid(name, value, f"a whole number from 1 to {most}")


def _invalid(name: str, value: object, what: str) -> InvalidRequest:
    return InvalidRequest(f"kv_transfer_params: {name} is {value!r}; it must be {what}")
