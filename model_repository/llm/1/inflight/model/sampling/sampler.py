"""Samples one token for each row of logits, with the parameters of the row's request.

The token depends only on the row's logits and parameters, the request's seed and the position, never on other rows.
Each row uses one random number of its own, see `Draws`. On CPUs, C++ kernels do it; elsewhere, torch's operators. Both
follow one rule:

1. Change the logits by the edits of logits processors, make tokens that a grammar does not allow impossible, and divide
   by the temperature.
2. Rank the tokens by their logits. Of equal logits, the smaller token id comes first.
3. Keep the first `top_k` tokens. Of these, keep each token before which the probabilities add up to less than `top_p`.
   Of these, keep each token whose probability is at least `min_p` times the largest.
4. Go through the kept tokens in the order of their ids. Take the first at which the cumulative probability exceeds the
   random number.
"""

from collections.abc import Sequence

import torch

from inflight.guided_decoding.token_masks import TokenMasks
from inflight.model.cpu import kernel_sampler
from inflight.model.sampling import torch_sampler
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.step_result import StepResult, TokenLogprobs


def sample(logits: torch.Tensor, batch: SamplingBatch, masks: TokenMasks | None = None) -> list[StepResult]:
    """Return a new token, and log-probabilities if requested, for each row of logits [S, vocabulary].

    A row gives no token if it has NaN in it, or if logits processors and masks forbid all tokens. Log-probabilities are
    those of the logits before any change.
    """
    way = kernel_sampler if kernel_sampler.takes(logits) else torch_sampler
    tokens, logprobs = way.sample(logits, batch, masks)
    return [
        StepResult((), is_tainted=_is_tainted(logits[row]))
        if token < 0
        else StepResult((token,), (logprobs[row],) if row in logprobs else ())
        for row, token in enumerate(tokens)
    ]


def _is_tainted(logits: torch.Tensor) -> bool:
    # NaN is not larger than anything. Nor is the largest logit if none is possible before any change.
    return not bool(logits.max() > -torch.inf)


def logprobs(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return the log-probabilities of one token and of the `counts` likeliest tokens, for each row of logits
    [R, vocabulary]."""
    way = kernel_sampler if kernel_sampler.takes(logits) else torch_sampler
    found: list[TokenLogprobs] = way.logprobs(logits, tokens, counts)
    return found
