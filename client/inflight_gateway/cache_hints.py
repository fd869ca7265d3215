"""Fields by which clients say which part of a prompt a provider should cache.

They are ignored, because prefixes are cached in any case. The answer is the same with and without them.
"""

from typing import Literal

from inflight_gateway.strict import Strict


class CacheControl(Strict):
    """Anthropic's mark of the end of a prefix. Clients of many providers also write it into OpenAI's chats."""

    type: Literal["ephemeral"]
    ttl: Literal["5m", "1h"] | None = None
    scope: str | None = None


class CacheBreakpoint(Strict):
    """OpenAI's mark of the end of a prefix."""

    mode: Literal["explicit"]
    ttl: Literal["30m", "12h"] | None = None


class CacheOptions(Strict):
    """Which prefixes OpenAI caches, and for how long."""

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Literal["30m", "12h"] | None = None
