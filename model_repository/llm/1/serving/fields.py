"""The fields of a request: their spellings and how their values are read.

vllm_backend's names come first; those of TensorRT-LLM's models, of both their generations, and of OpenAI are other
spellings of the same fields.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from inflight import InvalidRequest
from serving import names, values

Reader = Callable[[str, Any], Any]


@dataclass(frozen=True)
class Field:
    """A field under its own name, which is that in `SamplingParams` where it has one there."""

    name: str
    read: Reader


def _spelled(read: Reader, name: str, *others: str) -> dict[str, Field]:
    return dict.fromkeys((name, *others), Field(name, read))


SAMPLING: dict[str, Field] = {
    **_spelled(values.integer, "max_tokens", "max_completion_tokens"),
    **_spelled(values.integer, "min_tokens", "min_length"),
    **_spelled(values.number, "temperature"),
    **_spelled(values.integer, "top_k"),
    **_spelled(values.number, "top_p"),
    **_spelled(values.number, "min_p"),
    **_spelled(values.number, "repetition_penalty"),
    **_spelled(values.number, "presence_penalty"),
    **_spelled(values.number, "frequency_penalty"),
    **_spelled(values.integer, "seed", "random_seed"),
    **_spelled(values.texts, "stop", "stop_words"),
    **_spelled(values.integers, "stop_token_ids"),
    **_spelled(values.texts, "bad_words"),
    **_spelled(values.token_weights, "logit_bias"),
    **_spelled(values.truth, "ignore_eos"),
    **_spelled(values.integer, "logprobs"),
}
"""What becomes a field of `SamplingParams`, by any spelling."""

OTHERS: dict[str, Field] = {
    **_spelled(values.text, "text_input"),
    **_spelled(values.text, "messages"),
    **_spelled(values.integers, "input_ids"),
    **_spelled(values.truth, "stream"),
    **_spelled(values.truth, "exclude_input_in_output"),
    **_spelled(values.integer, "n", "num_return_sequences"),
    **_spelled(values.integer, "end_id"),
    **_spelled(values.integer, "best_of"),
    **_spelled(values.integer, "beam_width"),
    **_spelled(values.number, "length_penalty"),
    **_spelled(values.integer, "priority"),
    **_spelled(names.name, "tenant"),
    **_spelled(names.name, "cache_salt"),
    **_spelled(names.name, "client_request_id", "x-request-id"),
    **_spelled(values.integer, "timeout"),
    **_spelled(values.integer, "deadline_ms"),
    **_spelled(values.integer, "target_ttft_ms"),
    **_spelled(values.which_responses, "return_finish_reason"),
    **_spelled(values.truth, "return_cumulative_logprob"),
    **_spelled(values.truth, "return_logprobs"),
    **_spelled(values.truth, "return_log_probs"),
    **_spelled(values.truth, "return_num_input_tokens"),
    **_spelled(values.truth, "return_num_output_tokens"),
    **_spelled(values.truth, "return_token_ids"),
    **_spelled(values.truth, "return_usage"),
}

_ALL = SAMPLING | OTHERS
KNOWN = frozenset(_ALL)


def read_fields(source: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that one source of a request holds, under their own names; what is null counts as not given.

    Raises:
        InvalidRequest: a value does not fit, or a field is given in two spellings.
    """
    found: dict[str, Any] = {}
    spelled: dict[str, str] = {}
    for spelling, value in source.items():
        field = _ALL.get(spelling)
        if field is None or value is None:
            continue
        if field.name in spelled:
            raise InvalidRequest(f"{spelled[field.name]} and {spelling} are two names of one field; give one of them")
        spelled[field.name] = spelling
        found[field.name] = field.read(spelling, value)
    return found
