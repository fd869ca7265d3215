"""Serves two random prompts through a paged cache, in ragged batches and chunks, and compares the logits.

The reference is the model's own eager forward pass. At load time, the check finds what no config reveals: positions
that the model computes itself, state between tokens, and masks that it applies outside the attention interface.
"""

import logging
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from inflight.errors import UnsupportedModel
from inflight.model.attention.backend import TORCH, AttentionBackend
from inflight.model.attention.interface import attending_by, choose_attention
from inflight.model.forward import ForwardPass, Outputs
from inflight.model.head import vocab_size
from inflight.model.loading.attention_probe import AttentionLayer
from inflight.model.loading.reading import Reading
from inflight.model.loading.reference_experts import ReferenceExperts
from inflight.model.loading.trial_logits import (
    DECODED,
    eager_logits,
    paged_logits,
    request_of,
    requests_of,
)
from inflight.prompt_content import PromptContent

logger = logging.getLogger(__name__)

_SHORT, _LONG, LONGEST = 13, 40, 640
# Bounds on the relative error of logits. Rounding causes about 1e-6, 2e-3 and 2e-2, in this order. A wrong mask or
# position causes 1e-1 and more.
_TOLERANCE = {torch.float32: 1e-3, torch.float16: 2e-2, torch.bfloat16: 1e-1}
_SAME = 1e-3


class SelfCheck:
    """Holds the logits of a model's own forward pass, to compare them with the logits that serving computes.

    Raises:
        UnsupportedModel: The model's own forward pass fails, or gives no numbers.
    """

    def __init__(
        self,
        module: Any,
        readings: Sequence[Reading],
        max_model_len: int,
        *,
        reference: Callable[[], AbstractContextManager[None]] = nullcontext,
        worst: Callable[[float], float] = float,
    ) -> None:
        """The prompts exceed the thresholds of all `readings`, as far as 640 tokens and `max_model_len` allow.
        For a model that is divided over ranks, the forward pass in the context `reference` is that of the whole model,
        and `worst` returns the greatest error of all ranks, so that all decide alike.
        """
        self._module, self._reference, self._worst = module, reference, worst
        self._prompts = _prompts(module, readings, max_model_len)
        self._tolerance = _TOLERANCE.get(module.dtype, 1e-3)
        self._experts = ReferenceExperts(module, self._tolerance)
        self._inserts: tuple[Mapping[str, Any], torch.Tensor | None] | None = None
        """The model's own arguments for a prompt with images or embeddings, and its logits as soon as they can be
        right."""
        self.repeat_reference()

    def repeat_reference(self) -> None:
        """Compute the reference anew, after a change of weights that is intended and too large for the tolerance."""
        with _failing_as_unsupported(self._module), self._reference(), self._experts.recorded():
            self._wanted = eager_logits(self._module, self._prompts)
        if any(logits.isnan().any() for logits in self._wanted):
            raise UnsupportedModel(
                f"{self._module.config.model_type}: its own forward pass gives logits that are not numbers; are the "
                "weights whole?"
            )
        if not any(logits.any() for logits in self._wanted):
            raise UnsupportedModel(
                f"{self._module.config.model_type}: its own forward pass gives only logits of 0; are the weights whole?"
            )
        if self._inserts is not None:
            self.expect_inserts(self._inserts[0])

    @property
    def num_logits(self) -> int:
        """The number of logits of a token."""
        return self._wanted[0].shape[-1]

    def right_reading(self, readings: Sequence[Reading]) -> Reading:
        """Return the first reading that gives the right logits at every position. The model then attends by it.

        Raises:
            UnsupportedModel: No reading does. The message has the error of the first one.
        """
        errors = []
        for reading in readings:
            with _failing_as_unsupported(self._module):
                choose_attention(self._module, reading.attention)
                errors.append(self._error(reading.forward(self._module, TORCH), reading.layers, TORCH))
            if errors[-1] < self._tolerance:
                return reading
        raise UnsupportedModel(
            f"{self._module.config.model_type} does not come out right in ragged batches: its logits differ by "
            f"{errors[0]:.1%} from those of its own forward pass"
        )

    def passes(self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend) -> bool:
        """Whether `forward` computes the right logits over the caches of `backend`."""
        try:
            return self._error(forward, layers, backend) < self._tolerance
        except Exception as error:  # noqa: BLE001 - a model's code may raise any exception
            logger.info("%s: %s", backend.name, (str(error).strip() or repr(error)).splitlines()[-1])
            return False

    def same(
        self, forward: ForwardPass, other: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend
    ) -> bool:
        """Whether two forward passes give the same logits for every token, up to a relative error of `_SAME`.

        Stricter than `passes`, which lets single tokens differ in half precision.
        """
        mine, others = self._both(forward, other, layers, backend)
        return self._worst(_differ(mine, others)) == 0

    def gives_numbers(self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend) -> bool:
        """Whether all logits of a forward pass are numbers. It may raise any exception of the model's code."""
        found = paged_logits(self._module, forward, layers, requests_of(self._prompts), backend)
        return self._worst(any(bool(logits.isnan().any()) for logits in found)) == 0

    def similar(
        self, forward: ForwardPass, other: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend
    ) -> bool:
        """Whether two forward passes give the same logits up to rounding, as in `passes`."""
        return self._worst(self._difference(*self._both(forward, other, layers, backend))) < self._tolerance

    def _both(
        self, forward: ForwardPass, other: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits [tokens, vocabulary] of all prompts by each of two forward passes."""
        logits = (
            paged_logits(self._module, each, layers, requests_of(self._prompts), backend) for each in (forward, other)
        )
        mine, others = (torch.cat(rows) for rows in logits)
        return mine, others

    def hidden_width(
        self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend
    ) -> int | None:
        """Return the width of the hidden states, or None if the head does not compute the logits from them alone."""
        found: list[Outputs] = []
        requests = requests_of([self._prompts[1][:3]])
        wanted = torch.cat(paged_logits(self._module, forward, layers, requests, backend, found.append))
        try:
            mine = torch.cat([forward.head(outputs.hidden) for outputs in found])
            return found[0].hidden.shape[1] if self._worst(self._difference(mine, wanted)) < self._tolerance else None
        except Exception as error:  # noqa: BLE001 - a model's code may raise any exception
            logger.info("the head of %s is not apart: %s", self._module.config.model_type, error)
            return None

    def own_logits(self, inputs: Mapping[str, Any]) -> torch.Tensor:
        """Return the logits [tokens, vocabulary] that the model's own forward pass computes from its own arguments.

        A model that is divided over ranks must still have the layers with which it was loaded.
        """
        with torch.inference_mode(), attending_by(self._module, "eager"), self._reference():
            logits: torch.Tensor = self._module(**inputs, use_cache=False).logits[0]
            return logits

    @property
    def _is_divided(self) -> bool:
        return self._reference is not nullcontext

    def expect_inserts(self, inputs: Mapping[str, Any]) -> None:
        """Take the model's own arguments for a prompt with images or embeddings, to compare its logits with others.

        Call this before the model is optimized: after that, the layers of a divided model cannot compute the whole one.
        """
        self._inserts = inputs, self.own_logits(inputs) if self._is_divided else None

    def expect_inserts_of_optimized(self) -> None:
        """Call this when the model is optimized. In one process, the logits are those of now, so that the rounding of
        quantized weights is no error."""
        assert self._inserts is not None
        inputs, _ = self._inserts
        if not self._is_divided:
            self._inserts = inputs, self.own_logits(inputs)

    def everywhere(self, holds: bool) -> bool:
        """Whether something holds on all ranks."""
        return self._worst(not holds) == 0

    def same_with_inserts(
        self,
        prompt: PromptContent,
        forward: ForwardPass,
        other: ForwardPass,
        layers: Sequence[AttentionLayer],
        backend: AttentionBackend,
    ) -> bool:
        """Whether two forward passes give the same logits for a prompt with images or embeddings, as in `same`."""
        mine, others = (
            paged_logits(self._module, each, layers, [request_of(prompt)], backend)[0] for each in (forward, other)
        )
        return self._worst(_differ(mine, others)) == 0

    def error_with_inserts(
        self,
        prompt: PromptContent,
        forward: ForwardPass,
        layers: Sequence[AttentionLayer],
        backend: AttentionBackend,
    ) -> float | None:
        """Return the relative error of the logits of the prompt of `expect_inserts`, if it is too large."""
        assert self._inserts is not None
        _, wanted = self._inserts
        assert wanted is not None, "`expect_inserts_of_optimized` was not called"
        (found,) = paged_logits(self._module, forward, layers, [request_of(prompt)], backend)
        error = self._worst(self._difference(found, wanted))
        return None if error < self._tolerance else error

    def _error(self, forward: ForwardPass, layers: Sequence[AttentionLayer], backend: AttentionBackend) -> float:
        requests = requests_of(self._prompts)
        found = paged_logits(self._module, forward, layers, requests, backend, computing=self._experts.repeated)
        return self._worst(max(map(self._difference, found, self._wanted)))

    def _difference(self, mine: torch.Tensor, other: torch.Tensor) -> float:
        """Return the relative error of logits [tokens, vocabulary]: of the worst token; in half precision, the median.

        In half precision, rounding alone may route a token to other experts of a mixture, so single tokens may differ:
        padded batches do not repeat the experts of the reference. The dtype of the logits does not tell, as some models
        cap theirs in float32. With NaN, the error is infinite.
        """
        errors = ((mine - other).norm(dim=-1) / other.norm(dim=-1)).float()
        error = float(errors.max() if self._module.dtype == torch.float32 else errors.median())
        # Comparisons with NaN are false, so `max` would overlook it.
        return math.inf if math.isnan(error) else error


@contextmanager
def _failing_as_unsupported(module: Any) -> Iterator[None]:
    try:
        yield
    except UnsupportedModel:
        raise
    except Exception as error:
        raise UnsupportedModel(
            f"{module.config.model_type} fails in the self-check: {type(error).__name__}: {error}"
        ) from error


def _prompts(module: Any, readings: Sequence[Reading], max_model_len: int) -> list[list[int]]:
    """Two prompts of random tokens. The first is longer than any threshold, within `LONGEST` and `max_model_len`."""
    widest = max((tokens for reading in readings for tokens in reading.thresholds), default=0)
    long = min(max(_LONG, widest + DECODED + 5), LONGEST, max_model_len)
    short = min(max(_SHORT, long // 2), max_model_len)
    vocabulary = vocab_size(module)
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (n,), generator=generator).tolist() for n in (long, short)]


def _differ(mine: torch.Tensor, others: torch.Tensor) -> bool:
    """Whether logits [tokens, vocabulary] differ for any token by a relative error over `_SAME`, or are no numbers."""
    return bool(((mine - others).norm(dim=-1) > _SAME * others.norm(dim=-1)).any() or mine.isnan().any())
