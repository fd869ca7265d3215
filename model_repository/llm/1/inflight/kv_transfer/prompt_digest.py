"""A name of a prompt by which two engines find out whether they speak of the same one."""

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np

from inflight.kv_cache.cache_salt import CacheSalt
from inflight.request_options import RequestOptions


def prompt_digest(token_ids: Sequence[int], options: RequestOptions) -> str:
    """Return a digest of a prompt, of its tenant and of its cache salt.

    Who cannot tell it gets no keys and values: they would show how another tenant's prompt goes on.
    """
    salt = CacheSalt(options.tenant, options.cache_salt).encode()
    key = blake2b(salt, digest_size=32).digest()
    return blake2b(np.asarray(token_ids, dtype="<i8").tobytes(), key=key, digest_size=16).hexdigest()
