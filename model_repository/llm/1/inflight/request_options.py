"""Options of a request besides its prompt and its sampling parameters."""

from collections.abc import Mapping
from dataclasses import dataclass

from inflight.errors import InvalidRequest
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.speculation.speculative_config import MAX_DRAFT
from inflight.text.unicode import check_unicode

MAX_NAME_CHARACTERS = 256
"""Maximum length of a tenant's name, of a cache salt, and of a client's name for its request."""

MAX_GIVEN_DRAFT = 16_384
"""Maximum number of tokens in a client's draft, which the stepping thread indexes when the request first decodes."""

_MAX_INT64 = 2**63 - 1


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestOptions:
    """Priority, limits and names of one request.

    Raises:
        InvalidRequest: a value is out of its bounds; the message names the field, the value and the bound.
    """

    priority: int = 0
    """Level in the queue; 1 is the highest. 0: the default level."""

    tenant: str = ""
    """Who the request is charged to under the scheduling policy `fair`, without NUL characters. Requests without a
    tenant share one account."""

    request_class: str = ""
    """Class of the request under the scheduling policy `classes`, one of `request_classes`. Default: that of its
    tenant or its priority, or else the first one."""

    timeout: int = 0
    """Microseconds until the request ends, whether it waits or runs; counted only with `allow_timeout_override`.
    Where `timeout_action` is `DELAY`, the request moves back in the queue instead. 0: no limit."""

    deadline_ms: int | None = None
    """Milliseconds until the request ends, whether it waits or runs; the client gets what was generated. Default:
    no deadline."""

    target_ttft_ms: int | None = None
    """Target for the time to first token in milliseconds, used by the scheduling policy `slo`. Default: as
    configured."""

    cache_salt: str = ""
    """The request shares cached prefixes only with requests of the same salt."""

    lora_name: str = ""
    """The adapter that changes the model for this request, one of `lora_modules` or `lora_folder`. Default: none."""

    client_request_id: str = ""
    """The client's own name for the request, shown in the log, the trace and `inflight top`. It need not be unique.
    Default: Triton's request id."""

    num_speculative_tokens: int | None = None
    """Maximum number of drafted tokens in a step, at most 64; 0 turns drafts off. Default: as configured. The output is
    the same, whatever the number."""

    draft_input_ids: tuple[int, ...] = ()
    """Token ids of what the output may be, or of a text that it may copy from. Where it is right, several tokens come
    in a step. Only where `speculative_config` is set."""

    kv_transfer_params: KVTransferParams | None = None
    """What the request wants of another engine, or offers to it. Only where `kv_transfer_config` has a role."""

    arrival: float | None = None
    """When the request arrived, in seconds on the clock of `time.monotonic`. Its limits count from then. Default: when
    its prompt has been read."""

    trace_context: Mapping[str, str] | None = None
    """The client's OpenTelemetry context: the W3C headers `traceparent` and `tracestate`. The request's spans belong to
    it, and `trace_file` shows it."""

    def __post_init__(self) -> None:
        _check_integer("priority", self.priority, 0)
        _check_integer("timeout", self.timeout, 0)
        if self.deadline_ms is not None:
            _check_integer("deadline_ms", self.deadline_ms, 1)
        if self.target_ttft_ms is not None:
            _check_integer("target_ttft_ms", self.target_ttft_ms, 1)
        if self.num_speculative_tokens is not None:
            _check_integer("num_speculative_tokens", self.num_speculative_tokens, 0, MAX_DRAFT)
        if len(self.draft_input_ids) > MAX_GIVEN_DRAFT:
            raise InvalidRequest(
                f"draft_input_ids has {len(self.draft_input_ids)} token ids; it must have at most {MAX_GIVEN_DRAFT}"
            )
        for token in self.draft_input_ids:
            _check_integer("draft_input_ids", token, 0)
        for name in ("tenant", "request_class", "cache_salt", "lora_name", "client_request_id"):
            _check_name(name, getattr(self, name))
        if "\0" in self.tenant:
            # Triton would end the label there, and add up the metrics of several tenants.
            raise InvalidRequest(f"tenant is {self.tenant!r}; it must have no NUL character")


def _check_integer(name: str, value: object, low: int, high: int = _MAX_INT64) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} is {value!r}; it must be a whole number")
    if not low <= value <= high:
        raise InvalidRequest(f"{name} is {value}; it must be at least {low} and at most {high}")


def _check_name(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} is {value!r}; it must be a text")
    if len(value) > MAX_NAME_CHARACTERS:
        raise InvalidRequest(f"{name} has {len(value)} characters; it must have at most {MAX_NAME_CHARACTERS}")
    check_unicode(name, value)
