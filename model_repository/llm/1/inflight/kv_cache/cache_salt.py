"""What keeps the cached prefixes of requests apart."""

from dataclasses import astuple, dataclass

from inflight.request import Request


@dataclass(frozen=True, slots=True)
class CacheSalt:
    """Requests share the cached blocks of a prefix only if all of this is equal."""

    tenant: str = ""
    """Empty where tenants may share."""
    client: str = ""
    """What the request itself gave as `cache_salt`."""

    @classmethod
    def of(cls, request: Request, *, per_tenant: bool) -> "CacheSalt":
        """The salt of a request; `per_tenant` keeps tenants apart, so that none can time what others ask."""
        return cls(request.tenant if per_tenant else "", request.options.cache_salt)

    def encode(self) -> bytes:
        """Different bytes for different salts; none where nothing keeps requests apart."""
        parts = [part.encode() for part in astuple(self)]
        return b"".join(len(part).to_bytes(4, "little") + part for part in parts) if any(parts) else b""
