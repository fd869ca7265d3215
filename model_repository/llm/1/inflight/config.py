"""Engine settings, one frozen dataclass. Names are vLLM's where vLLM has one."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

from inflight.scheduler.queue_policy import REJECT, QueuePolicies, QueuePolicy
from inflight.scheduler.scheduler_config import SchedulerConfig, require_count

QUANTIZATIONS = ("int8",)
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class EngineConfig(SchedulerConfig):
    """Settings of one engine, with those of its scheduler.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    model: str
    """Local Hugging Face folder or hub id of a causal language model with safetensors weights."""

    dtype: str = "auto"
    """Weights and cache: `auto` (the checkpoint's), `float32`, `bfloat16` or `float16`."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, ...; `auto` takes CUDA where there is one."""

    trust_remote_code: bool = False
    """Run Python code that ships with the model."""

    max_model_len: int | None = None
    """Most tokens of a sequence, prompt and output; the model's own bound if not given."""

    block_size: int = 16
    """Tokens in a block of the KV cache."""

    kv_cache_tokens: int | None = None
    """Size of the KV cache in tokens; if not given it follows from `kv_cache_memory_fraction`."""

    kv_cache_memory_fraction: float | None = None
    """Share of the memory that is free beside the model and its largest step; the cache never takes more than
    `max_num_seqs` sequences of `max_model_len` tokens can use. Not given: 0.9 of a GPU's, and 0.2 of a host's, which
    has other uses."""

    enable_kernels: bool = True
    """Serve with kernels of our own: on GPUs, and models in bfloat16 on CPUs with AVX2, where they are built at the
    first start."""

    enable_cuda_graphs: bool = True
    """On GPUs, record steps of decodes at the start and launch each as one."""

    quantization: str | None = None
    """`int8`: weights of linear layers in 8 bits, rounded at the start. For models in bfloat16 on such CPUs."""

    enable_prefix_caching: bool = True
    """Reuse blocks whose tokens and all tokens before them are the same."""

    prefix_caching_per_tenant: bool = False
    """Reuse blocks only within a tenant, so that none can tell by the time what others asked."""

    prefix_caching_key: str | None = None
    """Secret that the names of cached blocks are made with. Engines with the same key name equal blocks alike. Not
    given: a random one."""

    max_queue_size: int = 2048
    """Most requests that wait, those of all priority levels together; one more is refused with `QueueFull`."""

    priority_levels: int = 0
    """Levels of priority, 1 the highest; 0: requests have no priorities. This and what follows are named as in Triton's
    `dynamic_batching`, whose queue policies the engine's own queue applies."""

    default_priority_level: int = 0
    """Level of requests that name none that exists; must be given where there are levels."""

    default_timeout_microseconds: int = 0
    """How long a request may wait for its first step before `timeout_action` is taken; 0: without end."""

    allow_timeout_override: bool = False
    """Heed timeouts that requests bring; they can shorten the default one, not lengthen it."""

    timeout_action: str = REJECT
    """`REJECT` refuses a request that waited too long, `DELAY` lets it wait behind the others of its level."""

    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)
    """Policies of single levels; as in Triton such a policy takes nothing over from the settings above."""

    trace_file: str | None = None
    """Where to write what happens to every request in every step, for ui.perfetto.dev; not given: nowhere."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", os.fspath(self.model))  # A Path will do too.
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        if self.quantization not in (None, *QUANTIZATIONS):
            raise ValueError(
                f"quantization is {self.quantization!r}; it must be {' or '.join(QUANTIZATIONS)}, or not given"
            )
        for name in ("block_size", "max_queue_size"):
            require_count(name, getattr(self, name), 1)
        for name in ("max_model_len", "kv_cache_tokens"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), 1)
        if self.kv_cache_tokens is not None and self.kv_cache_tokens < self.block_size:
            raise ValueError(
                f"kv_cache_tokens is {self.kv_cache_tokens}; it must hold one block of {self.block_size} tokens"
            )
        if self.kv_cache_memory_fraction is not None and not 0 < self.kv_cache_memory_fraction < 1:
            raise ValueError(
                f"kv_cache_memory_fraction is {self.kv_cache_memory_fraction}; it must lie between 0 and 1"
            )
        self._check_level_bounds(self.queue_policies)

    @property
    def queue_policies(self) -> QueuePolicies:
        """The policy of each priority level."""
        default = QueuePolicy(
            default_timeout_microseconds=self.default_timeout_microseconds,
            allow_timeout_override=self.allow_timeout_override,
            timeout_action=self.timeout_action,
        )
        return QueuePolicies(default, self.priority_levels, self.default_priority_level, self.priority_queue_policy)

    def _check_level_bounds(self, policies: QueuePolicies) -> None:
        for level, policy in policies.by_level.items():
            if policy.max_queue_size > self.max_queue_size:
                raise ValueError(
                    f"priority_queue_policy of level {level}: max_queue_size is {policy.max_queue_size}; "
                    f"it must not be over that of the engine, {self.max_queue_size}"
                )
