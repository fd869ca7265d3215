"""The salt that separates the cached prefixes of requests."""

from dataclasses import astuple, dataclass

from inflight.request import Request


@dataclass(frozen=True, slots=True)
class CacheSalt:
    """Requests share the cached blocks of a prefix only if their salts are equal."""

    tenant: str = ""
    """Empty if tenants may share blocks."""
    client: str = ""
    """The request's own `cache_salt`."""
    adapter: str = ""
    """The digest of its adapter, which changes keys and values."""
    length: str = ""
    """Whether its sequence is a long one, which changes keys, too."""

    @classmethod
    def of(cls, request: Request, *, per_tenant: bool) -> "CacheSalt":
        """Return the salt of a request.

        `per_tenant` separates tenants, so that no tenant can learn from response times what another one asked.
        """
        adapter = "" if request.adapter is None else request.adapter.digest
        tenant, length = request.tenant if per_tenant else "", "long" if request.is_long else ""
        return cls(tenant, request.options.cache_salt, adapter, length)

    def encode(self) -> bytes:
        """Return different bytes for different salts. The result is empty if all parts are empty."""
        parts = [part.encode() for part in astuple(self)]
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts) if any(parts) else b""
