"""Converts requests, responses and errors to and from the gRPC messages of Triton's protocol."""

import array
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from inflight_client.errors import (
    AccessDenied,
    DeadlineExceeded,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    ServerFault,
    ServerOverloaded,
    TransportError,
)
from inflight_client.options import TLS, Options
from inflight_client.request import Request
from inflight_client.response import PERF_OUTPUTS, PerfMetrics, Reply, Usage
from inflight_client.server_info import ModelInfo, ServerInfo, TensorInfo

_KV_TRANSFER = "kv_transfer_params"
# Of arrays, for the types of numbers in `PERF_OUTPUTS`.
_TYPE_CODES = {"FP32": "f", "INT32": "i", "INT64": "q"}


def channel_options(options: Options) -> list[tuple[str, int | str]]:
    """Settings of a channel: the timeout of a connection attempt, the waits between attempts, and the server's name.

    By default gRPC waits 20 s for an address that does not answer, and up to 2 minutes before the next attempt. Here it
    waits a second at most, so that clients find a server soon that was started again.
    """
    milliseconds = max(1, round(1000 * options.connect_timeout))
    settings: list[tuple[str, int | str]] = [
        # Despite its name, this is also gRPC's timeout of a connection attempt.
        ("grpc.min_reconnect_backoff_ms", milliseconds),
        ("grpc.initial_reconnect_backoff_ms", min(200, milliseconds)),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # Otherwise a new channel would take over the connection of another one to the same server, which may be dead.
        ("grpc.use_local_subchannel_pool", 1),
        # Otherwise gRPC would ask the proxy of `http_proxy` for every server, also for one on this host.
        ("grpc.enable_http_proxy", 0),
    ]
    if options.authority is not None:
        settings.append(("grpc.default_authority", options.authority))
    return settings


def one_request_stream(channel: Any) -> Any:
    """Return the method that sends one request and reads its responses, on a channel for threads or for asyncio.

    Triton's protocol has a stream of requests here. A stream of exactly one request looks the same on the wire as a
    single request, so this uses gRPC's unary-stream call. That saves a thread or a task per call. It also avoids a
    fault of grpc.aio: if the server refuses a call while grpc.aio still sends requests from an iterator, grpc.aio
    reports an internal error.
    """
    return channel.unary_stream(
        "/inference.GRPCInferenceService/ModelStreamInfer",
        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
        response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
    )


def credentials(tls: TLS) -> Any:
    """Return gRPC's credentials object. Raises OSError if a file cannot be read."""
    files = (tls.root_certificates, tls.private_key, tls.certificate_chain)
    return grpc.ssl_channel_credentials(*(None if file is None else file.read_bytes() for file in files))


def metadata(options: Options) -> list[tuple[str, str]]:
    """Return the headers as gRPC metadata."""
    return [(name.lower(), value) for name, value in options.headers.items()]


def encode(request: Request, seconds: float) -> service_pb2.ModelInferRequest:
    """Make the message for a request with `seconds` of time left."""
    message = service_pb2.ModelInferRequest(model_name=request.model)
    # A failed stream ends with the text of the error, but without its code. Triton has a header that turns on status
    # codes, `triton_grpc_error`. But release 24.10 crashed within minutes when many streams with that header failed.
    message.parameters["code_in_error"].bool_param = True
    for name, value in request.flags.items():
        if isinstance(value, str):
            message.parameters[name].string_param = value
        else:
            message.parameters[name].bool_param = value
    if isinstance(request.prompt, str):
        _add_strings(message, request.prompt_field, [request.prompt])
    elif request.prompt_field:
        _add_ids(message, request.prompt_field, request.prompt)
    if request.images:
        _add_strings(message, "image", request.image_texts)
    if request.embeds is not None:
        message.inputs.add(
            name=request.embeds.input_name, datatype=request.embeds.data_type, shape=request.embeds.shape
        )
        message.raw_input_contents.append(request.embeds.content)
    _add_strings(message, "sampling_parameters", [request.sampling_json(seconds)])
    _add_bool(message, "stream", request.stream)
    _add_bool(message, "exclude_input_in_output", True)
    return message


def _add_strings(message: service_pb2.ModelInferRequest, name: str, values: Sequence[str]) -> None:
    contents = [value.encode() for value in values]
    message.inputs.add(name=name, datatype="BYTES", shape=[len(contents)])
    message.raw_input_contents.append(b"".join(len(each).to_bytes(4, "little") + each for each in contents))


def _add_ids(message: service_pb2.ModelInferRequest, name: str, ids: Sequence[int]) -> None:
    message.inputs.add(name=name, datatype="INT32", shape=[len(ids)])
    message.raw_input_contents.append(array.array("i", ids).tobytes())


def _add_bool(message: service_pb2.ModelInferRequest, name: str, value: bool) -> None:
    message.inputs.add(name=name, datatype="BOOL", shape=[1])
    message.raw_input_contents.append(bytes([value]))


def _usage(outputs: Mapping[str, tuple[Sequence[int], bytes]]) -> Usage:
    prompt, completion = array.array("I", outputs["usage"][1])
    (cached,) = array.array("I", outputs["num_cached_tokens"][1]) if "num_cached_tokens" in outputs else (0,)
    return Usage(prompt, completion, cached)


def decode(response: service_pb2.ModelInferResponse) -> Reply:
    """Read a response of the model. Raises ServerFault if it is not from a model of Inflight."""
    outputs = {
        output.name: (output.shape, content)
        for output, content in zip(response.outputs, response.raw_output_contents, strict=True)
    }
    try:
        return Reply(
            texts=_strings(outputs["text_output"][1]),
            finish_reasons=_strings(outputs["finish_reason"][1]) if "finish_reason" in outputs else (),
            stop_reasons=_strings(outputs["stop_reason"][1]) if "stop_reason" in outputs else (),
            token_ids=_rows(*outputs["token_ids"]) if "token_ids" in outputs else (),
            logprobs=_strings(outputs["logprobs"][1]) if "logprobs" in outputs else (),
            usage=_usage(outputs) if "usage" in outputs else None,
            prompt="".join(_strings(outputs["prompt"][1])) if "prompt" in outputs else "",
            prompt_logprobs="".join(_strings(outputs["prompt_logprobs"][1])) if "prompt_logprobs" in outputs else "",
            embedding=array.array("f", outputs["embedding"][1]) if "embedding" in outputs else (),
            kv_transfer_params="".join(_strings(outputs[_KV_TRANSFER][1])) if _KV_TRANSFER in outputs else "",
            perf=_perf(response, outputs) if PERF_OUTPUTS[0] in outputs else (),
        )
    except KeyError as missing:
        raise ServerFault(f"the model's response lacks {missing}; it is no model of Inflight") from None


def _perf(response: service_pb2.ModelInferResponse, outputs: Mapping[str, tuple[Any, bytes]]) -> list[PerfMetrics]:
    codes = {output.name: _TYPE_CODES.get(output.datatype, "") for output in response.outputs}
    columns = [array.array(codes[name], outputs[name][1]) for name in PERF_OUTPUTS]
    return [PerfMetrics(*row) for row in zip(*columns, strict=True)]


def _strings(content: bytes) -> list[str]:
    texts, start = [], 0
    while start < len(content):
        end = start + 4 + int.from_bytes(content[start : start + 4], "little")
        texts.append(content[start + 4 : end].decode())
        start = end
    return texts


def _rows(shape: Sequence[int], content: bytes) -> list["array.array[int]"]:
    ids, count = array.array("i", content), shape[-2]
    width = len(ids) // count
    return [ids[row * width : (row + 1) * width] for row in range(count)]


def error_of(error: grpc.RpcError) -> InflightError:
    """Return the error that the status of a call means. The model's own errors come in a response instead."""
    code, details = error.code(), error.details() or str(error)
    match code:
        case grpc.StatusCode.UNAVAILABLE if "restricted" in details:
            return AccessDenied(details)  # Triton's restricted protocols.
        case grpc.StatusCode.UNAVAILABLE:
            return TransportError(details)
        case grpc.StatusCode.UNAUTHENTICATED | grpc.StatusCode.PERMISSION_DENIED:
            return AccessDenied(details)
        case grpc.StatusCode.INVALID_ARGUMENT | grpc.StatusCode.OUT_OF_RANGE:
            return InvalidRequest(details)
        case grpc.StatusCode.UNIMPLEMENTED:
            # Another program has the address now, or a proxy has no route.
            return ModelNotReady(f"there is no Triton server: {details}")
        case grpc.StatusCode.NOT_FOUND:
            return ModelNotReady(details)
        case grpc.StatusCode.RESOURCE_EXHAUSTED:
            return ServerOverloaded(details, retry_after=_pushback(error))
        case grpc.StatusCode.DEADLINE_EXCEEDED:
            return DeadlineExceeded(details)
        case grpc.StatusCode.CANCELLED:
            return RequestCancelled(details)
    return ServerFault(details)


def _pushback(error: grpc.RpcError) -> float | None:
    """Seconds after which the server, or a proxy in front of it, asks to be tried again, from gRPC's header."""
    values = [value for key, value in error.trailing_metadata() or () if key == "grpc-retry-pushback-ms"]
    return int(values[0]) / 1000 if values and values[0].isdecimal() else None


def server_info(message: service_pb2.ServerMetadataResponse) -> ServerInfo:
    """Read the description of a server."""
    return ServerInfo(message.name, message.version, tuple(message.extensions))


def model_info(message: service_pb2.ModelMetadataResponse, config: service_pb2.ModelConfigResponse) -> ModelInfo:
    """Read the description of a model from its metadata and its configuration."""
    return ModelInfo(
        message.name,
        tuple(message.versions),
        config.config.model_transaction_policy.decoupled,
        _tensors(message.inputs),
        _tensors(message.outputs),
        {name: value.string_value for name, value in config.config.parameters.items()},
    )


def _tensors(messages: Sequence[Any]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(tensor.name, tensor.datatype, tuple(tensor.shape)) for tensor in messages)
