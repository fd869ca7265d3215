"""Samples with the C++ kernels."""

from collections.abc import Sequence

import torch

from inflight.guided_decoding.token_masks import TokenMasks
from inflight.logits_processors.edits import LogitEdits
from inflight.model.sampling.sampling_batch import SamplingBatch
from inflight.step_result import TokenLogprobs


def takes(logits: torch.Tensor) -> bool:
    """Whether the kernels can sample from these logits."""
    return logits.device.type == "cpu" and hasattr(torch.ops.inflight, "sample")


def sample(
    logits: torch.Tensor, batch: SamplingBatch, masks: TokenMasks | None = None
) -> tuple[list[int], dict[int, TokenLogprobs]]:
    """Return a token for each row of logits [S, vocabulary], or -1, and the log-probabilities of the rows that ask."""
    logits = _readable(logits)
    edits, allowed = _tensors(batch.edits), _mask_tensors(masks, *logits.shape)
    tokens = torch.ops.inflight.sample(logits, torch.from_numpy(batch.parameters), *edits, *allowed).tolist()
    return tokens, _logprobs(logits, tokens, batch.num_logprobs)


def logprobs(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int]) -> list[TokenLogprobs]:
    """Return the log-probabilities of one token of each row of logits [R, vocabulary], and of the likeliest ones."""
    found = _logprobs(_readable(logits), tokens, counts)
    return [found[row] for row in range(len(tokens))]


def _readable(logits: torch.Tensor) -> torch.Tensor:
    return logits if logits.dtype in (torch.bfloat16, torch.float32) else logits.float()


def _tensors(edits: LogitEdits) -> tuple[torch.Tensor, list[torch.Tensor], torch.Tensor, list[torch.Tensor]]:
    """The rows [E], tokens, penalties [E] and biases of all E edits. Nothing is copied."""
    return (
        torch.tensor([edit.row for edit in edits.edits], dtype=torch.int64),
        [torch.from_numpy(edit.tokens) for edit in edits.edits],
        torch.tensor([edit.penalty for edit in edits.edits], dtype=torch.float32),
        [torch.from_numpy(edit.biases) for edit in edits.edits],
    )


def _mask_tensors(masks: TokenMasks | None, rows: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    if masks is None:
        return torch.full((rows,), -1), torch.empty((0, -(-width // 32)), dtype=torch.int32)
    return torch.from_numpy(masks.index), torch.from_numpy(masks.bits)


def _logprobs(logits: torch.Tensor, tokens: Sequence[int], counts: Sequence[int | None]) -> dict[int, TokenLogprobs]:
    asking = [(row, tokens[row], n) for row, n in enumerate(counts) if n is not None and tokens[row] >= 0]
    if not asking:
        return {}
    rows, chosen, wanted = zip(*asking, strict=True)
    columns = (torch.tensor(column, dtype=torch.int64) for column in (rows, chosen, wanted))
    found = torch.ops.inflight.logprobs(logits, *columns, max(wanted))
    results = zip(rows, wanted, *(each.tolist() for each in found), strict=True)
    return {
        row: TokenLogprobs.of(logprob, rank, top[:count], values[:count])
        for row, count, logprob, rank, top, values in results
    }
