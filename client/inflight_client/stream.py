"""One request's answer, while it is being written."""

import contextlib
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import grpc

from inflight_client.errors import InflightError, ServerFault
from inflight_client.response import Chunk, decode


class TextStream:
    """Iterator over the chunks of one request.

    As a context manager it cancels the request on the server when left before the end. Iterating raises
    an `InflightError` when the request fails, `RequestCancelled` after `cancel()`.
    """

    def __init__(self, call: Any, explain: Callable[[grpc.RpcError | str], InflightError]) -> None:
        self._call = call
        self._explain = explain
        self._finished = False

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Chunk:
        try:
            message = next(self._call)
        except StopIteration:
            if self._finished:
                raise
            raise ServerFault("the stream ended before the text did") from None
        except grpc.RpcError as error:
            raise self._explain(error) from error
        if message.error_message:
            self._finished = True
            self._read_to_the_end()
            raise self._explain(message.error_message)
        chunk = decode(message.infer_response)
        self._finished = chunk.finish_reason is not None
        return chunk

    def _read_to_the_end(self) -> None:
        # A cancel that meets the last response on its way can keep Triton 24.10 from unloading the model.
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                pass

    def cancel(self) -> None:
        """Tell the server to stop; safe from any thread, and after the end."""
        self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if not self._finished:  # See `_read_to_the_end`.
            self.cancel()
