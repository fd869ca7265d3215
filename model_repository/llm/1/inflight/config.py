"""Engine settings: one frozen dataclass. A setting that vLLM also has bears vLLM's name."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from inflight.kv_events.kv_events_config import KVEventsConfig
from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.lora.lora_modules import MAX_ADAPTERS, check_lora_modules
from inflight.scheduler.queue_policy import REJECT, QueuePolicies, QueuePolicy
from inflight.scheduler.scheduler_config import SchedulerConfig, require_count, require_number
from inflight.speculation.speculative_config import SpeculativeConfig

QUANTIZATIONS = ("int8", "int4")
_MAX_LORA_RANK = 1024
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True)
class EngineConfig(SchedulerConfig):
    """Settings of an engine and of its scheduler.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    model: str
    """Local Hugging Face folder or hub id of a causal language model with safetensors weights."""

    revision: str = "main"
    """Branch, tag or commit of a model on the hub. A commit never changes: name one where `trust_remote_code` is
    set. The log names the commit that is served."""

    tokenizer: str | None = None
    """Local folder or hub id of a tokenizer in place of the model's, such as that of the base model of a fine-tuned
    one. Its own Python code is not run. Default: the model's."""

    chat_template: str | None = None
    """A file with a Jinja template for chats, or the template itself, in place of the model's. Default: the
    model's."""

    classifier_from_token: Sequence[str] = ()
    """Let a model for text score, too, as a reranker: how likely is the second of two tokens after a prompt, against
    the first? A JSON list, such as `["no", "yes"]`. With one token, the score is the `sigmoid` of its logit. Tokens are
    as the vocabulary spells them. Empty: no scores."""

    dtype: str = "auto"
    """Type of weights and KV cache: `auto` (the checkpoint's), `float32`, `bfloat16` or `float16`."""

    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1` and so on. `auto`: CUDA where available."""

    num_threads: int | None = None
    """Threads that compute on the CPU, at most one for each processor that the process may use. Default: torch's own
    number, which `OMP_NUM_THREADS` can set, or fewer where an affinity mask or the CPU quota of a container allows
    fewer."""

    tensor_parallel_size: int = 1
    """Number of processes over which the model is divided, each with a part of every layer. On GPUs, each has a GPU of
    its own."""

    nnodes: int = 1
    """Number of machines over which the processes of `tensor_parallel_size` are spread, the same number on each."""

    master_addr: str = "127.0.0.1"
    """Address of this machine, at which the other machines reach it. Needed where `nnodes` is over 1."""

    master_port: int = 29501
    """Port at which this machine waits for the other machines."""

    trust_remote_code: bool = False
    """Run Python code that ships with the model or its tokenizer."""

    max_model_len: int | None = None
    """Maximum length of a sequence in tokens, prompt and output together. Default: the model's own."""

    block_size: int = 16
    """Tokens per block of the KV cache."""

    kv_cache_tokens: int | None = None
    """Size of the KV cache in tokens. Default: it follows from `kv_cache_memory_fraction`."""

    kv_cache_memory_fraction: float | None = None
    """Share of the memory left beside the model, its largest step and its CUDA graphs. The cache never takes more
    than `max_num_seqs` sequences of `max_model_len` tokens need. Default: 0.9 on a GPU, and 0.2 on a host, whose
    memory has other uses."""

    enable_kernels: bool = True
    """Use the project's own kernels: on GPUs, and on CPUs with AVX2 for models in bfloat16. CPU kernels are
    compiled at the first start."""

    enable_cuda_graphs: bool = True
    """On GPUs, capture decode steps at start-up and replay each as one launch."""

    quantization: str | None = None
    """`int8` or `int4`: quantize the weights of linear layers and experts to 8 or 4 bits at start-up. For models in
    bfloat16 on CPUs with AVX2."""

    lora_modules: Mapping[str, Any] = field(default_factory=dict)
    """LoRA adapters that requests can ask for by name, as JSON with the folder or hub id of each, such as
    `{"sql": "/adapters/sql"}`. All of them stay in memory. Empty: none."""

    lora_folder: str | None = None
    """A folder with a LoRA adapter in each subfolder. Requests ask for one by the subfolder's name, and it is read when
    the first one does. Adapters may be added, replaced and removed while the server runs. Default: none."""

    max_loras: int = 16
    """How many adapters of `lora_folder` are in memory at a time. The least recently used one makes room for another.
    Requests for others wait while unfinished ones use them all."""

    max_lora_rank: int = 16
    """Highest rank of an adapter in `lora_folder`."""

    enable_prompt_embeds: bool = False
    """Let prompts have embeddings in place of tokens, such as those that an encoder of sounds has computed. Anyone who
    may send requests can then give the model inputs that no text has. A model that reads images reads none."""

    enable_prefix_caching: bool = True
    """Reuse KV-cache blocks of prompts that begin with the same tokens."""

    prefix_caching_per_tenant: bool = True
    """Reuse blocks only within a tenant, so that no tenant can learn from response times what another one asked.
    Requests without a tenant share theirs."""

    prefix_caching_key: str | None = None
    """Secret key of the hash that names cached blocks. Engines with the same key give equal blocks equal names.
    Default: a random key."""

    kv_offloading_size: float = 0.0
    """Size of the host memory for blocks of the KV cache in GiB, in place of `swap_space_tokens`. 0: the latter counts.
    On a CPU the KV cache is in the same memory, so a larger KV cache is better."""

    kv_offloading_path: str | None = None
    """Folder for prefixes on disk, which are found again after a restart. They tell what was asked, so only this user
    may have access to it. Default: none."""

    kv_offloading_disk_size: float = 10.0
    """Maximum size of the files in `kv_offloading_path` in GiB. The least recently used ones go first."""

    max_queue_size: int = 2048
    """Maximum number of waiting requests, all priority levels together. One more is refused."""

    max_queue_tokens: int | None = None
    """Maximum number of tokens in all waiting requests together. A request that would exceed it is refused. Default:
    16 times the size of the KV cache."""

    priority_levels: int = 0
    """Number of priority levels; 1 is the highest. 0: no priorities. This and the following parameters have the
    names and meanings of Triton's queue policies (`dynamic_batching`); the engine's own queue applies them."""

    default_priority_level: int = 0
    """Level of requests that name no existing level. Required where there are levels."""

    default_timeout_microseconds: int = 0
    """How long a request may wait for its first step before `timeout_action` applies. 0: no limit."""

    allow_timeout_override: bool = False
    """Accept timeouts from requests. They can shorten the default timeout but not lengthen it."""

    timeout_action: str = REJECT
    """`REJECT` refuses a request that has waited too long. `DELAY` moves it behind the others of its level; under the
    scheduling policies `priority` and `classes`, behind all others."""

    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)
    """Queue policies of single levels, as JSON. As in Triton, such a policy inherits nothing from the parameters
    above."""

    kv_events_config: Mapping[str, Any] = field(default_factory=dict)
    """Publish over ZMQ which prefixes are in the cache, for routers. As JSON with vLLM's names, such as
    `{"enable_kv_cache_events": true}`; see `KVEventsConfig`. Token ids are sent in clear. Empty: off."""

    kv_transfer_config: Mapping[str, Any] = field(default_factory=dict)
    """Let prompts be computed by one server and continued by another. As JSON with vLLM's names, such as
    `{"kv_role": "kv_producer"}`; see `KVTransferConfig`. Empty: off."""

    trace_file: str | None = None
    """File for a trace of every request and step, to be opened in ui.perfetto.dev. Default: no trace."""

    otlp_traces_endpoint: str | None = None
    """Where the OpenTelemetry spans of requests go: the address of a receiver of OTLP over HTTP, such as
    `http://127.0.0.1:4318`. Without a path, `/v1/traces` is added. Requests whose caller does not ask for spans have
    none. Default: no spans."""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "model", os.path.expanduser(self.model))  # It accepts a Path, too.
        if self.tokenizer is not None:
            object.__setattr__(self, "tokenizer", os.path.expanduser(self.tokenizer))
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype is {self.dtype!r}; it must be one of {', '.join(DTYPES)}")
        if self.quantization not in (None, *QUANTIZATIONS):
            raise ValueError(
                f"quantization is {self.quantization!r}; it must be {' or '.join(QUANTIZATIONS)}, or not given"
            )
        for name in ("block_size", "max_queue_size", "tensor_parallel_size", "nnodes", "master_port"):
            require_count(name, getattr(self, name), 1)
        for name in ("num_threads", "max_model_len", "kv_cache_tokens", "max_queue_tokens"):
            if getattr(self, name) is not None:
                require_count(name, getattr(self, name), 1)
        tokens = self.classifier_from_token
        if isinstance(tokens, str) or len(tokens) > 2 or not all(isinstance(token, str) for token in tokens):
            raise ValueError(f"classifier_from_token is {tokens!r}; it must be a list of one or two tokens")
        self._check_cache()
        if self.otlp_traces_endpoint is not None and not self.otlp_traces_endpoint.startswith(("http://", "https://")):
            raise ValueError(
                f"otlp_traces_endpoint is {self.otlp_traces_endpoint!r}; it must begin with http:// or https://"
            )
        if KVEventsConfig.of(self.kv_events_config).is_on and not self.enable_prefix_caching:
            raise ValueError("kv_events_config is on, but enable_prefix_caching is false")
        self._check_lora(KVTransferConfig.of(self.kv_transfer_config).kv_role)
        self._check_level_bounds(self.queue_policies)
        self._check_machines()

    def _check_cache(self) -> None:
        if self.kv_cache_tokens is not None and self.kv_cache_tokens < self.block_size:
            raise ValueError(
                f"kv_cache_tokens is {self.kv_cache_tokens}; it must hold one block of {self.block_size} tokens"
            )
        if self.kv_cache_memory_fraction is not None and not 0 < self.kv_cache_memory_fraction < 1:
            raise ValueError(
                f"kv_cache_memory_fraction is {self.kv_cache_memory_fraction}; it must lie between 0 and 1"
            )
        for name in ("kv_offloading_size", "kv_offloading_disk_size"):
            require_number(name, getattr(self, name), positive=name == "kv_offloading_disk_size")
        if self.kv_offloading_size and self.swap_space_tokens:
            raise ValueError(
                f"kv_offloading_size is {self.kv_offloading_size} and swap_space_tokens is {self.swap_space_tokens}; "
                "both are the size of the same memory, so one of them must be 0"
            )
        if self.kv_offloading_path is not None and not self.enable_prefix_caching:
            raise ValueError("kv_offloading_path is given, but enable_prefix_caching is false")

    def _check_lora(self, kv_role: str | None) -> None:
        check_lora_modules(self.lora_modules)
        for name, most in (("max_loras", MAX_ADAPTERS), ("max_lora_rank", _MAX_LORA_RANK)):
            require_count(name, getattr(self, name), 1, most)
        if self.lora_setting and kv_role is not None:
            raise ValueError(f"{self.lora_setting} is given, and kv_transfer_config has a kv_role; leave one out")

    def _check_machines(self) -> None:
        if self.master_port > 65535:
            raise ValueError(f"master_port is {self.master_port}; it must be at most 65535")
        if self.tensor_parallel_size % self.nnodes:
            raise ValueError(
                f"tensor_parallel_size is {self.tensor_parallel_size} and nnodes is {self.nnodes}; the first must be a "
                "multiple of the second"
            )
        if self.tensor_parallel_size > 1:
            self._check_ranks()

    def _check_ranks(self) -> None:
        """Refuse what one process does by itself."""
        several = f"tensor_parallel_size is {self.tensor_parallel_size}"
        if SpeculativeConfig.of(self.speculative_config).model is not None:
            raise ValueError(f"speculative_config names a model that drafts, and {several}; it must be 1")
        if self.classifier_from_token:
            raise ValueError(f"classifier_from_token is given, and {several}; it must be 1")
        if self.kv_offloading_path is not None:
            raise ValueError(f"kv_offloading_path is given, and {several}; it must be 1")
        if KVTransferConfig.of(self.kv_transfer_config).kv_role is not None:
            raise ValueError(f"kv_transfer_config has a kv_role, and {several}; it must be 1")
        if self.device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device is {self.device!r}, and {several}; device must be auto, cpu or cuda")

    @property
    def lora_setting(self) -> str | None:
        """The name of a setting that asks for adapters, if one does."""
        if self.lora_modules:
            return "lora_modules"
        return None if self.lora_folder is None else "lora_folder"

    @property
    def ranks_per_machine(self) -> int:
        """Number of processes of the model on each machine."""
        return self.tensor_parallel_size // self.nnodes

    @property
    def has_host_memory(self) -> bool:
        """Whether blocks of the KV cache may go to host memory."""
        return super().has_host_memory or self.kv_offloading_size > 0

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
