"""One table says which fields a request has; whoever needs them takes them from there."""

import dataclasses

import pytest

from inflight import InvalidRequest, RequestOptions, SamplingParams
from serving.fields import FIELDS, GROUPS, add_tensors
from serving.output_options import OutputOptions
from serving.outputs import OUTPUTS
from serving.perf_metrics import perf_metrics
from serving.read_fields import read_fields


class ModelConfig:
    """What `add_tensors` uses of Triton's class."""

    def __init__(self) -> None:
        self.inputs: list[dict[str, object]] = []
        self.outputs: list[dict[str, object]] = []

    def add_input(self, tensor: dict[str, object]) -> None:
        self.inputs.append(tensor)

    def add_output(self, tensor: dict[str, object]) -> None:
        self.outputs.append(tensor)


def test_no_name_stands_for_two_fields() -> None:
    names = [name for field in FIELDS for name in field.names]
    assert len(set(names)) == len(names)


def test_what_a_request_can_ask_of_the_engine_can_be_given_over_the_wire() -> None:
    ours = {field.name for field in FIELDS}
    for owner in (SamplingParams, RequestOptions):
        # The trace context is made of the fields `traceparent` and `tracestate`, or comes from Triton. The arrival is
        # when the server gets the request.
        assert {field.name for field in dataclasses.fields(owner)} - {"trace_context", "arrival"} <= ours


def test_every_output_is_one_that_a_request_can_ask_for() -> None:
    asked = {field.name.removeprefix("return_") for field in GROUPS["Answer"] if field.name.startswith("return_")}
    follow_from_others = {"has_logprobs", "kv_transfer_params"}
    assert asked == {option.name for option in dataclasses.fields(OutputOptions)} - follow_from_others
    tensorrt_llm = {"cum_log_probs", "output_log_probs", *perf_metrics([], block_size=16)}
    others = asked - {"log_probs", "perf_metrics"}
    assert {output.name for output in OUTPUTS} == others | tensorrt_llm | {"text_output", "kv_transfer_params"}


def test_every_input_is_optional_and_one_can_be_left_out() -> None:
    config = add_tensors(ModelConfig(), without="stream")
    assert all(tensor["optional"] for tensor in config.inputs)
    names = [tensor["name"] for tensor in config.inputs]
    assert {"text_input", "sampling_parameters", "min_length"} <= set(names)
    assert not {"stream", "timeout", "x-request-id", "logit_bias"} & set(names)
    assert [tensor["name"] for tensor in config.outputs] == [output.name for output in OUTPUTS]


def test_a_field_is_read_under_any_of_its_names_but_not_under_two() -> None:
    assert read_fields({"max_completion_tokens": 3, "x-request-id": "mine", "temperature": None}) == {
        "max_tokens": 3,
        "client_request_id": "mine",
    }
    with pytest.raises(InvalidRequest, match="max_tokens and max_completion_tokens are two names of one field"):
        read_fields({"max_tokens": 3, "max_completion_tokens": 3})
