"""What a request waits for before it is submitted to the engine."""

import base64
import binascii
import functools
from collections.abc import Callable
from concurrent.futures import Future

from inflight import EmbedsPrompt, Engine, ImagePrompt, InvalidRequest, QueueFull
from inflight.guided_decoding.grammar import Grammar
from inflight.kv_transfer.connector import Fetched
from inflight.prompts import AnyPrompt
from inflight.text.prompt_encoder import Prompt
from serving.aborter import Aborter
from serving.adapter_reads import AdapterReads
from serving.failures import Failures
from serving.long_prompts import is_long
from serving.parse import ParsedRequest
from serving.stream import ResponseStream
from serving.streams import Streams
from serving.tenant_worker import TenantWorker


class Preparation:
    """Submits requests to the engine once all is there: their grammars, tokens, and keys and values from elsewhere.

    Grammars are compiled, long prompts tokenized, images, adapters and blocks on disk read, and prompts fetched on
    other threads. Such a thread then goes on with the request. Requests that need none of this are submitted at once.
    """

    def __init__(
        self,
        engine: Engine,
        streams: Streams,
        failures: Failures,
        aborter: Aborter,
        long_prompts: TenantWorker,
        images: TenantWorker,
        disk_reads: TenantWorker,
        adapter_reads: AdapterReads,
    ) -> None:
        self._engine = engine
        self._streams = streams
        self._failures = failures
        self._aborter = aborter
        self._long_prompts = long_prompts
        self._images = images
        self._disk_reads = disk_reads
        self._adapter_reads = adapter_reads

    def begin(self, stream: ResponseStream, parsed: ParsedRequest) -> None:
        """Submit a request, as soon as its grammar is compiled if it is guided, and its prompt's turn has come."""
        constraint = parsed.params.structured_outputs
        if constraint is None:
            self._streams.add(stream)
            self._enter(stream, parsed)
        else:
            try:
                compiled = self._engine.grammars.compile(constraint, parsed.options.tenant)
            except Exception:
                self._engine.submitter.release(parsed.options)
                raise
            self._streams.add(stream)
            compiled.add_done_callback(functools.partial(self._enter, stream, parsed))

    def _enter(self, stream: ResponseStream, parsed: ParsedRequest, compiled: "Future[Grammar] | None" = None) -> None:
        """Submit a request whose grammar is there. Raises nothing."""
        submit = functools.partial(self._submit_now, stream, parsed, compiled)
        must_read = self._adapter_reads.must_wait(parsed.options.lora_name)
        if not must_read and not parsed.images and not is_long(parsed):
            self._enter_short(submit, parsed)
            return
        try:
            if must_read:
                self._adapter_reads.add(stream, parsed.options, submit)
            else:
                worker = self._images if parsed.images else self._long_prompts
                worker.add(parsed.options.tenant, submit)
        except QueueFull as error:
            self._engine.submitter.release(parsed.options)
            self._streams.drop(stream)
            self._failures.refuse(stream.sender, error)

    def _enter_short(self, submit: Callable[..., bool], parsed: ParsedRequest) -> None:
        """Submit a request at once, or after what is on disk of its prompt is read. Raises nothing."""
        if self._engine.disk is not None:
            try:
                self._disk_reads.add(parsed.options.tenant, submit)
                return
            except QueueFull:  # Computing is faster than waiting for so many.
                pass
        submit(reads_disk=False)

    def _submit_now(
        self,
        stream: ResponseStream,
        parsed: ParsedRequest,
        compiled: "Future[Grammar] | None",
        *,
        reads_disk: bool = True,
    ) -> bool:
        """Submit a request, or refuse it. Return whether it was right. Raises nothing."""
        submitter = self._engine.submitter
        try:
            if self._has_ended(stream):
                submitter.release(parsed.options)
                return True
            grammar = None if compiled is None else compiled.result()
            if parsed.pooling is not None:
                text, (request_id,) = self._text_prompt(parsed), stream.samples
                submitter.submit_embedding(text, parsed.pooling, request_id, parsed.options, reads_disk=reads_disk)
                return True
            prompt = self._prompt(parsed)
            if (fetch := submitter.fetch(prompt, stream.params, parsed.options)) is not None:
                fetch.add_done_callback(functools.partial(self._submit_fetched, stream, parsed, grammar))
            else:
                submitter.submit_samples(prompt, stream.params, parsed.options, grammar, reads_disk=reads_disk)
        except Exception as error:  # noqa: BLE001 - `refuse` answers it
            submitter.release(parsed.options)
            self._streams.drop(stream)
            self._failures.refuse(stream.sender, error)
            return not isinstance(error, InvalidRequest)
        return True

    def _submit_fetched(
        self, stream: ResponseStream, parsed: ParsedRequest, grammar: Grammar | None, fetch: "Future[Fetched]"
    ) -> None:
        """Submit a request for which another engine was asked. Raises nothing."""
        try:
            if not self._has_ended(stream):
                fetched = fetch.result()
                submitter = self._engine.submitter
                submitter.submit_samples(fetched.prompt_ids, stream.params, parsed.options, grammar, fetched)
        except Exception as error:  # noqa: BLE001 - `refuse` answers it
            self._streams.drop(stream)
            self._failures.refuse(stream.sender, error)

    def _has_ended(self, stream: ResponseStream) -> bool:
        """Return whether a request that waits to be submitted has got its last response by now."""
        if stream in self._streams and stream.is_cancelled():
            self._aborter.abort(stream, "the request was cancelled", "CANCELLED")
        return stream not in self._streams

    def _prompt(self, parsed: ParsedRequest) -> AnyPrompt:
        if parsed.embeds is not None:
            return EmbedsPrompt(parsed.embeds, parsed.prompt)
        if not parsed.images:
            return self._text_prompt(parsed)
        images = [_decoded(image) for image in parsed.images]
        # Before the chat template, which may fail on the places of images if the model reads none.
        self._engine.maker.prompts.image_reader()
        return ImagePrompt(self._text_prompt(parsed), images)

    def _text_prompt(self, parsed: ParsedRequest) -> Prompt:
        if parsed.chat is not None:
            return self._engine.encoder.encode_chat(parsed.chat)
        prompt, most = parsed.prompt or (), parsed.truncate_prompt_tokens
        if most is None:
            return prompt
        max_tokens = 0 if parsed.pooling else parsed.params.max_tokens
        return self._engine.maker.prompts.truncated(prompt, most, max_tokens, beginning=parsed.keeps_beginning)


def _decoded(image: str | bytes) -> bytes:
    try:
        return base64.b64decode(image, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidRequest(f"image is not valid base64: {error}") from None
