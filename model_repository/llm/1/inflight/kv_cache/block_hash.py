"""Names for full blocks: equal hashes mean equal tokens in the block and in everything before it."""

import os
from array import array
from collections.abc import Sequence
from hashlib import blake2b

from inflight.kv_cache.cache_salt import CacheSalt

_DIGEST_BYTES = 16


class BlockHasher:
    """Hashes blocks with a secret key, so that nobody outside can craft two prompts whose blocks collide.

    Engines with the same key give the same names to the same blocks.
    """

    def __init__(self, block_size: int, key: bytes | None = None) -> None:
        """`key`: any bytes; a random one of this object's own if not given."""
        self._block_size = block_size
        # blake2b takes at most 64 bytes of key.
        self._key = os.urandom(32) if key is None else blake2b(key, digest_size=32).digest()

    def extend(self, hashes: list[bytes], token_ids: Sequence[int], num_tokens: int, salt: CacheSalt) -> None:
        """Append to `hashes` those of the full blocks within the first `num_tokens` tokens that it lacks.

        Each hash covers its own tokens and its parent's hash (a hash chain as in vLLM's prefix caching); the parent of
        the first one is the salt.
        """
        for index in range(len(hashes), num_tokens // self._block_size):
            parent = hashes[index - 1] if index else self._digest(salt.encode())
            tokens = array("q", token_ids[index * self._block_size : (index + 1) * self._block_size])
            hashes.append(self._digest(parent + tokens.tobytes()))

    def _digest(self, content: bytes) -> bytes:
        return blake2b(content, digest_size=_DIGEST_BYTES, key=self._key).digest()
