"""API keys: which clients may send requests, under which tenant, and with which highest priority."""

import hashlib
import hmac
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from inflight_gateway.disconnect import EVENTS
from inflight_gateway.errors import ApiError
from inflight_gateway.limits import is_generation

# The page at /ui needs no key, but what it shows does.
_GUARDED = ("/v1/", EVENTS)
KEY = "inflight_key"
"""The entry of a request's scope that holds its `ApiKey`."""


class ApiKey(BaseModel):
    """One table `[[keys]]` of the file."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    name: Annotated[str, Field(min_length=1, max_length=256)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """Digest of the key, made with `printf %s KEY | sha256sum`. The file does not hold the key itself."""
    tenant: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Tenant of the key's requests. Default: the key's name."""
    priority: Annotated[int, Field(ge=1)] | None = None
    """Highest priority of the key's requests (1 is the highest), and their default. Without it, a request can have any
    priority."""

    request_class: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """Class of the key's requests, whatever they ask for. Without it, a request can name any class."""

    @property
    def tenant_name(self) -> str:
        """The tenant that the key's requests are charged to."""
        return self.tenant or self.name


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    keys: Annotated[list[ApiKey], Field(min_length=1)]


class KeyRing:
    """The keys of one gateway."""

    def __init__(self, keys: Sequence[ApiKey]) -> None:
        self._keys = tuple(keys)

    @classmethod
    def read(cls, path: Path) -> "KeyRing":
        """Read a file. Raises OSError, or a ValueError that names the invalid entry."""
        try:
            keys = _File.model_validate(tomllib.loads(path.read_text())).keys
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
        except ValueError as error:  # The file is not TOML, or not UTF-8.
            raise ValueError(f"{path}: {error}") from None
        for field in ("name", "sha256"):
            values = [getattr(key, field) for key in keys]
            if repeated := {value for value in values if values.count(value) > 1}:
                raise ValueError(f"{path}: keys share the {field} {', '.join(sorted(repeated))}")
        return cls(keys)

    def find(self, secret: str) -> ApiKey | None:
        """Return the entry of a key. Compares all entries, so that the response time reveals nothing about them."""
        digest = hashlib.sha256(secret.encode()).hexdigest()
        found = None
        for key in self._keys:
            if hmac.compare_digest(key.sha256, digest):
                found = key
        return found


class RequireKey:
    """Answers 401 to requests without a key of the ring: to those that tell what runs, and to all that reach the
    model."""

    def __init__(self, app: ASGIApp, ring: KeyRing) -> None:
        self._app = app
        self._ring = ring

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if is_generation(scope) or (scope["type"] == "http" and scope["path"].startswith(_GUARDED)):
            headers = Headers(scope=scope)
            scheme, _, secret = headers.get("authorization", "").partition(" ")
            if not scheme and (other := headers.get("x-api-key")) is not None:
                scheme, secret = "bearer", other  # Anthropic's clients send it so.
            key = self._ring.find(secret.strip()) if scheme.lower() == "bearer" else None
            if key is None:
                await _refusal(bool(scheme)).response()(scope, receive, send)
                return
            scope[KEY] = key
        await self._app(scope, receive, send)


def _refusal(given: bool) -> ApiError:
    message = "the API key is wrong" if given else "there is no API key; send it as Authorization: Bearer KEY"
    return ApiError(401, "invalid_api_key", message, headers={"WWW-Authenticate": "Bearer"})
