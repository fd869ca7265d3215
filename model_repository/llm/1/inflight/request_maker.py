"""Makes requests of what callers ask for, or refuses it by name."""

import os
import time
from collections.abc import Sequence
from dataclasses import replace

from inflight.beam_search.beam_group import BeamGroup
from inflight.beam_search.search import BeamSearch
from inflight.config import EngineConfig
from inflight.content_reader import ContentReader, check_below
from inflight.errors import InvalidRequest
from inflight.guided_decoding.grammar import Grammar
from inflight.guided_decoding.grammars import Grammars
from inflight.logits_processors.factory import make_processors
from inflight.lora.adapter import Adapter
from inflight.model.loading.loader import LoadedModel
from inflight.pooling_params import CLASSIFY, PoolingParams
from inflight.prompt_content import PromptContent
from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.sampling_params import ROOM_FOR_ALL, SamplingParams
from inflight.scheduler.scheduler import Scheduler
from inflight.speculation.speculative_config import SpeculativeConfig
from inflight.text.bad_words import token_sequences
from inflight.text.prompt_encoder import PromptEncoder
from inflight.text.unknown_text import unknown_text_refused

# Limit for all spellings of all bad words of a request together: each token costs time at every step.
_MAX_BAD_WORD_TOKENS = 4096


class RequestMaker:
    """Knows what the model, the KV cache and the settings allow. All methods raise InvalidRequest for anything else.

    Any thread may use it.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        encoder: PromptEncoder,
        grammars: Grammars,
        scheduler: Scheduler,
    ) -> None:
        self._config = config
        self._model = model
        self._encoder = encoder
        self._grammars = grammars
        self._scheduler = scheduler
        self._capacity = scheduler.tables.pool.num_blocks * config.block_size
        """Tokens that the KV cache holds."""
        # As with bad words, the model may have no logit for some of them.
        self._suppress_tokens = tuple(t for t in model.defaults.suppress_tokens if t < model.num_logits)
        self.prompts = ContentReader(config, model, encoder, self._capacity)

    def request(
        self,
        prompt: PromptContent,
        params: SamplingParams,
        request_id: str,
        grammar: Grammar | None = None,
    ) -> Request:
        """Make a request that wants tokens or scores. Without the `grammar` that it needs, this waits for it."""
        if not self._model.has_head:
            use = "classifies" if self._model.classifier is not None else "makes embeddings"
            raise InvalidRequest(f"text is asked for, but the model's weights have no output head; it {use}")
        if grammar is None and params.structured_outputs is not None:
            grammar = self._grammars.compile(params.structured_outputs).result()
        params = self._filled(params)
        if params.stop and self._model.tokenizer is None:
            raise InvalidRequest("stop is given, but the model folder has no tokenizer")
        stop_token_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_token_ids |= self._model.eos_token_ids
        for name in ("stop_token_ids", "logit_bias", "logprob_token_ids", "allowed_token_ids"):
            for token in getattr(params, name) or ():
                self._check_logit(name, token)
        if params.prompt_logprobs is not None:
            if prompt.embeds is not None:
                raise InvalidRequest("prompt_logprobs is given with prompt_embeds, which have no probabilities")
            self._check_hidden_states("prompt_logprobs")
            # The first token has no log-probability.
            self._check_logit("a prompt with prompt_logprobs", max(prompt.token_ids[1:], default=0))
        request = Request(
            request_id=request_id,
            prompt_ids=prompt.token_ids,
            params=params,
            max_tokens=self._max_tokens(len(prompt.token_ids), params),
            seed=params.seed if params.seed is not None else int.from_bytes(os.urandom(8), "little"),
            stop_token_ids=stop_token_ids,
            processors=make_processors(
                params,
                prompt_ids=prompt.words,
                stop_token_ids=stop_token_ids,
                bad_words=self._bad_words(params),
                num_logits=self._model.num_logits,
            ),
            grammar=None if grammar is None else grammar.begin(),
            arrival=time.monotonic(),
            priority=self._scheduler.policies.level(0),
            images=prompt.images,
            embeds=prompt.embeds,
            rope_switch=self._model.rope_switch,
        )
        if params.min_tokens > request.max_tokens:
            raise InvalidRequest(
                f"min_tokens is {params.min_tokens}; it must not be over max_tokens, {request.max_tokens}"
            )
        if params.beam_width > 1:
            self._search_beams(request)
        self._check_fit(request)
        return request

    def embedding_request(self, prompt_ids: list[int], pooling: PoolingParams, request_id: str) -> Request:
        """Make a request that wants an embedding, or probabilities of classes."""
        classifier = None
        if pooling.task == CLASSIFY:
            classifier = self._model.classifier
            if classifier is None:
                raise InvalidRequest("task is classify, but the model has no head for classes")
            prompt_ids = classifier.read_part(prompt_ids)
        width = self._check_hidden_states("classify" if classifier is not None else "an embedding")
        if pooling.dimensions is not None and pooling.dimensions > width:
            raise InvalidRequest(f"dimensions is {pooling.dimensions}; it must be at most {width}, the model's width")
        self._check_length(len(prompt_ids), self._model.max_model_len)
        request = Request(
            request_id=request_id,
            prompt_ids=prompt_ids,
            params=SamplingParams(),
            max_tokens=0,
            seed=0,
            pooling=pooling,
            rope_switch=self._model.rope_switch,
            classifier=classifier,
            arrival=time.monotonic(),
            priority=self._scheduler.policies.level(0),
        )
        self._check_fit(request)
        return request

    def check_options(self, options: RequestOptions) -> None:
        """Check what the settings must allow."""
        if options.draft_input_ids:
            self._check_draft(options.draft_input_ids)
        if options.request_class:
            self._check_class(options.request_class)

    def adapter(self, name: str) -> Adapter | None:
        """Return the adapter with this name; None if the name is empty. It may have to be read from files.

        Raises:
            QueueFull: there is no room for it, as unfinished requests use so many others.
        """
        if not name:
            return None
        if self._model.adapters is None:
            raise InvalidRequest(
                "lora_name is given, but neither lora_modules nor lora_folder is set, so there are no adapters"
            )
        return self._model.adapters.get(name)

    def _check_logit(self, name: str, token: int) -> None:
        """Check that outputs may have a token of the field `name`."""
        check_below(self._model.num_logits, name, token)

    @property
    def takes_drafts(self) -> bool:
        """Whether requests may bring drafts of their outputs."""
        settings = self._config.speculative_config
        return bool(settings) and not SpeculativeConfig.of(settings).model

    def _filled(self, params: SamplingParams) -> SamplingParams:
        """Return the parameters with the model's defaults. A beam search chooses its tokens without them."""
        defaults = self._model.defaults
        if params.beam_width == 1:
            return defaults.fill(params)
        if params.repetition_penalty is None and defaults.repetition_penalty != 1:
            raise InvalidRequest(
                f"repetition_penalty is {defaults.repetition_penalty} in the model's generation_config; with a "
                "beam_width it must be given as 1"
            )
        return replace(params, temperature=0, top_k=0, top_p=1, min_p=0, repetition_penalty=1)

    def _search_beams(self, request: Request) -> None:
        """Raises InvalidRequest if so many beams cannot run together."""
        width, most = request.params.beam_width, min(self._config.max_num_seqs, self._config.max_num_batched_tokens)
        if width > most:
            raise InvalidRequest(
                f"beam_width is {width}; it must be at most {most}, the sequences that a step can have"
            )
        switch, known = request.rope_switch, len(request.prompt_ids)
        if switch is not None and known <= switch < request.max_cached_tokens:
            raise InvalidRequest(
                f"max_tokens is {request.max_tokens}; with a beam_width it must be at most {switch - known + 1} after "
                f"a prompt of {known} tokens, as the model's rotary embeddings change beyond {switch}"
            )
        search = BeamSearch(
            request.params,
            max_tokens=request.max_tokens,
            stop_token_ids=request.stop_token_ids,
            suppress_tokens=self._suppress_tokens,
        )
        if search.num_candidates > self._model.num_logits:
            raise InvalidRequest(
                f"beam_width is {width} and {len(request.stop_token_ids)} tokens may end the output: too many for a "
                f"vocabulary of {self._model.num_logits}"
            )
        request.beams = BeamGroup(request, search)

    def _check_hidden_states(self, what: str) -> int:
        """Return the width of the model's hidden states."""
        width = self._model.hidden_width
        if width is None:
            kind = type(self._model.module).__name__
            raise InvalidRequest(f"{what} is asked for, but the head of {kind} computes more than hidden states say")
        return width

    def _check_fit(self, request: Request) -> None:
        if self._scheduler.fits(request):
            return
        capacity = self._capacity
        if not request.max_tokens:
            raise InvalidRequest(
                f"prompt has {len(request.prompt_ids)} tokens; it must have at most {capacity}, as the KV cache holds "
                f"{capacity}"
            )
        if request.beams is not None:
            raise InvalidRequest(
                f"{request.beams.width} beams after a prompt of {len(request.prompt_ids)} tokens may need "
                f"{self._scheduler.tables.most_blocks(request) * self._config.block_size} tokens of the KV cache; it "
                f"holds {capacity}"
            )
        raise InvalidRequest(
            f"prompt and max_tokens are {len(request.prompt_ids)} and {request.max_tokens} tokens; "
            f"together they must not be over {capacity + 1}, as the KV cache holds {capacity}"
        )

    def _check_length(self, prompt_tokens: int, most: int) -> None:
        if prompt_tokens > most:
            raise InvalidRequest(
                f"prompt has {prompt_tokens} tokens; it must have at most {most}, as the context is "
                f"{self._model.max_model_len}"
            )

    def _max_tokens(self, prompt_tokens: int, params: SamplingParams) -> int:
        self._check_length(prompt_tokens, self._model.max_model_len - (params.max_tokens != 0))
        room = self._model.max_model_len - prompt_tokens
        if params.max_tokens in (None, ROOM_FOR_ALL):
            cached = self._capacity + 1 - prompt_tokens
            wanted = self._model.defaults.max_tokens if params.max_tokens is None else room
            return max(1, min(wanted, room, cached))
        if params.max_tokens > room:
            raise InvalidRequest(
                f"max_tokens is {params.max_tokens}; after a prompt of {prompt_tokens} tokens it must be "
                f"at most {room}, as the context is {self._model.max_model_len}"
            )
        return params.max_tokens

    def _check_draft(self, token_ids: Sequence[int]) -> None:
        if not self._config.speculative_config:
            raise InvalidRequest("draft_input_ids is given, but speculative_config is not set, so nothing is drafted")
        if not self.takes_drafts:
            raise InvalidRequest("draft_input_ids is given, but speculative_config names a model that drafts instead")
        for token in token_ids:
            self.prompts.check_token("draft_input_ids", token)

    def _check_class(self, name: str) -> None:
        known = self._config.request_classes
        if not known:
            raise InvalidRequest("request_class is given, but request_classes is not set")
        if name not in known:
            raise InvalidRequest(f"request_class is {name!r}; it must be one of {', '.join(known)}")

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        sequences = params.bad_words_ids
        if params.bad_words:
            with unknown_text_refused("bad_words"):
                sequences += token_sequences(self._encoder.tokenizer("bad_words"), params.bad_words)
        length = sum(map(len, sequences))
        if length > _MAX_BAD_WORD_TOKENS:
            raise InvalidRequest(f"bad_words are {length} tokens; they must be at most {_MAX_BAD_WORD_TOKENS} together")
        # Tokenizers and clients may name tokens for which the model has no logit. The output never has them.
        known = tuple(sequence for sequence in sequences if max(sequence) < self._model.num_logits)
        return (*known, *((token,) for token in self._suppress_tokens))
