"""Hashes of full blocks. Equal hashes mean equal tokens in the block and in all blocks before it."""

import os
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from inflight.kv_cache.cache_salt import CacheSalt
from inflight.prompt_embeds import PromptEmbeds
from inflight.prompt_images import PromptImages

_DIGEST_BYTES = 16


class BlockHasher:
    """Hashes blocks with a secret key, so that no client can craft two prompts whose blocks collide.

    Engines with the same key give equal blocks equal hashes.
    """

    def __init__(self, block_size: int, key: bytes | None = None) -> None:
        """`key` is a byte string of any length. Default: a random key for this object."""
        self._block_size = block_size
        # blake2b accepts at most 64 bytes of key.
        self._key = os.urandom(32) if key is None else blake2b(key, digest_size=32).digest()

    def extend(
        self,
        hashes: list[bytes],
        token_ids: Sequence[int],
        num_tokens: int,
        salt: CacheSalt,
        inserts: PromptImages | PromptEmbeds | None = None,
    ) -> None:
        """Append the missing hashes of the full blocks within the first `num_tokens` tokens.

        Each hash covers the tokens of the block and the hash of its parent, the block before it (a hash chain as in
        vLLM's prefix caching). The parent of the first block is the salt. The hash of a block with `inserts` covers
        these, too, whose tokens are the same for all of them.
        """
        for index in range(len(hashes), num_tokens // self._block_size):
            first, end = index * self._block_size, (index + 1) * self._block_size
            parent = hashes[index - 1] if index else self._digest(salt.encode())
            tokens = array("q", token_ids[first:end])
            inserted = b"" if inserts is None else inserts.digests_between(first, end)
            hashes.append(self._digest(parent + tokens.tobytes() + inserted))

    def _digest(self, content: bytes) -> bytes:
        return blake2b(content, digest_size=_DIGEST_BYTES, key=self._key).digest()
