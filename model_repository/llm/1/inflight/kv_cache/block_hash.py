"""Names for full blocks: equal hashes mean equal tokens in the block and in everything before it."""

import os
from array import array
from collections.abc import Sequence
from hashlib import blake2b

# A key of the process's own: nobody outside can craft two prompts that collide.
_KEY = os.urandom(16)


def root_hash(salt: str) -> bytes:
    """What the first block of a sequence has for a parent; sequences with different salts share no block."""
    return blake2b(salt.encode(), digest_size=16, key=_KEY).digest() if salt else b""


def extend_hashes(
    hashes: list[bytes], token_ids: Sequence[int], num_tokens: int, block_size: int, root: bytes = b""
) -> None:
    """Append to `hashes` those of the full blocks within the first `num_tokens` tokens that it lacks.

    Each hash covers its own tokens and its parent's hash (hash chain as in vLLM's prefix caching).
    """
    for index in range(len(hashes), num_tokens // block_size):
        parent = hashes[index - 1] if index else root
        tokens = array("q", token_ids[index * block_size : (index + 1) * block_size])
        hashes.append(blake2b(parent + tokens.tobytes(), digest_size=16, key=_KEY).digest())
