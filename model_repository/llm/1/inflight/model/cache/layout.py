"""What two engines must have in common, so that one can read the other's blocks."""

import json
from hashlib import blake2b

from inflight.config import EngineConfig
from inflight.model.cpu.instruction_sets import instruction_sets
from inflight.model.loading.loader import LoadedModel

# Raise this when the meaning of the bytes changes.
_VERSION = 1


def fingerprint(model: LoadedModel, config: EngineConfig) -> str:
    """Return a name of everything that decides what the bytes of a block mean.

    These are the model's weights and config, its types, the block size, and the kernels: each instruction set has a
    layout of its own and rounds in its own way.
    """
    parts = {
        "version": _VERSION,
        "model": model.digest,
        "dtype": str(model.dtype),
        "quantization": config.quantization,
        "block_size": config.block_size,
        "backend": model.backend.name,
        "instruction_set": instruction_sets()[:1] if model.device.type == "cpu" else [],
        "layers": [[s.num_kv_heads, s.key_width, s.value_width] for s in (layer.shape for layer in model.layers)],
    }
    return blake2b(json.dumps(parts, sort_keys=True).encode(), digest_size=16).hexdigest()
