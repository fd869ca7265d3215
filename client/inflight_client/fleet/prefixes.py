"""Which servers have the beginning of a prompt in their prefix cache, as far as this client can know."""

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Sequence
from hashlib import blake2b
from typing import Generic, TypeVar

from inflight_client.request import Request

_S = TypeVar("_S", bound=Hashable)

# About 64 tokens, as text or as ids. The engine's blocks are shorter, so a match is never shorter than they can use.
_BLOCK_BYTES = 256
# A hash takes a microsecond, and what comes later in a long prompt decides nothing.
_MAX_BLOCKS = 256
_MAX_KEPT = 32_768


def prefix_hashes(request: Request) -> list[bytes]:
    """Return a hash for each block of the request's prompt: of that block and all before it. At least one.

    They depend on what the server's prefix cache depends on besides the prompt: the tenant, `cache_salt`, `lora_name`.
    All of them depend on all embeddings of the prompt.
    """
    prompt = request.prompt if isinstance(request.prompt, str) else ",".join(map(str, request.prompt))
    content = prompt.encode()
    embeds = None if request.embeds is None else blake2b(request.embeds.content, digest_size=16).digest()
    scope = (
        request.prompt_field,
        embeds,
        *(request.parameters.get(name) for name in ("tenant", "cache_salt", "lora_name")),
    )
    running = blake2b(repr(scope).encode(), digest_size=16)
    hashes: list[bytes] = []
    for start in range(0, min(len(content), _BLOCK_BYTES * _MAX_BLOCKS), _BLOCK_BYTES):
        if hashes and len(content) < start + _BLOCK_BYTES:
            break  # The last block grows with the next turn of a chat.
        running.update(content[start : start + _BLOCK_BYTES])
        hashes.append(running.digest())
    return hashes or [running.digest()]


class PrefixMemory(Generic[_S]):
    """Remembers which servers got the newest prompts, by the prompts' blocks.

    llm-d and SGLang's router keep the like. The server's cache may have dropped a block since, which costs only time.
    """

    def __init__(self) -> None:
        self._servers: OrderedDict[bytes, frozenset[_S]] = OrderedDict()

    def add(self, hashes: Sequence[bytes], server: _S) -> None:
        """Record that a server gets a prompt."""
        for block in hashes:
            self._servers[block] = self._servers.pop(block, frozenset()) | {server}
        while len(self._servers) > _MAX_KEPT:
            self._servers.popitem(last=False)

    def holders(self, hashes: Sequence[bytes], servers: Iterable[_S]) -> frozenset[_S]:
        """Return those of some servers that got the longest part of a prompt. Empty if none got the first block."""
        able = frozenset(servers)
        for block in reversed(hashes):
            if found := self._servers.get(block, frozenset()) & able:
                return found
        return frozenset()

    def forget(self, server: _S) -> None:
        """Forget what a server got: it was started anew, or is gone."""
        self._servers = OrderedDict(
            (block, rest) for block, servers in self._servers.items() if (rest := servers - {server})
        )
