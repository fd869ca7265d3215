"""Divides a model's layers over the ranks, with plain tensors and modules."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from inflight.model.parallel.plan import (
    GATHERED_COLUMN,
    REPLICATE,
    ROW,
    SPLIT_ROW,
    SUMMED,
    VOCABULARY,
    kv_heads_of,
    style_of,
)
from inflight.model.parallel.shards import Shards
from inflight.model.parallel.traceable import Collectives

_BIAS_OF_OUTPUT = "down_proj_bias"


class GatheredLinear(nn.Module):
    """A linear layer of which each rank computes some columns of the output. All ranks get the whole output."""

    def __init__(self, linear: nn.Linear, collectives: Collectives) -> None:
        super().__init__()
        self.linear, self._collectives, self.out_features = linear, collectives, linear.out_features

    @property
    def weight(self) -> torch.Tensor:
        """This rank's part [columns, in_features]."""
        return self.linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [..., in_features] to [..., out_features]."""
        return self._collectives.gather(self.linear(x), self.out_features)


class SummedLinear(nn.Module):
    """A linear layer of which each rank has the rows for a part of the input. All ranks get the sum."""

    def __init__(self, linear: nn.Linear, collectives: Collectives, *, splits_input: bool) -> None:
        """`splits_input`: the layer gets the whole input; otherwise it gets this rank's part."""
        super().__init__()
        self.linear, self._collectives = linear, collectives
        self._part = collectives.shards.part_of(linear.in_features) if splits_input else None
        # Added once, after the sum.
        self.bias: nn.Parameter | None = linear.bias
        linear.register_parameter("bias", None)

    @property
    def weight(self) -> torch.Tensor:
        """This rank's part [out_features, rows]."""
        return self.linear.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map x [..., in_features] or this rank's part of it to [..., out_features]."""
        if self._part is not None and not self._collectives.shards.is_whole:
            x = x[..., self._part]
        y = self._collectives.sum(self.linear(x))
        return y if self.bias is None else y + self.bias


class DividedEmbedding(nn.Module):
    """An embedding of which each rank has the rows of some tokens. The others are zero before the sum."""

    def __init__(self, embedding: nn.Embedding, collectives: Collectives) -> None:
        super().__init__()
        self.embedding, self._collectives, self.num_embeddings = embedding, collectives, embedding.num_embeddings
        self._part = collectives.shards.part_of(self.num_embeddings)
        embedding.padding_idx = None  # Only training needs it, and it need not be in this rank's part.

    @property
    def weight(self) -> torch.Tensor:
        """This rank's part [tokens, width]."""
        return self.embedding.weight

    def forward(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Map int64 [...] to [..., width]."""
        if self._collectives.shards.is_whole:
            return self.embedding(token_ids)  # type: ignore[no-any-return]
        others = (token_ids < self._part.start) | (token_ids >= self._part.stop)
        vectors = self.embedding((token_ids - self._part.start).masked_fill(others, 0))
        return self._collectives.sum(vectors.masked_fill(others[..., None], 0))


@dataclass(frozen=True)
class DividedWeight:
    """A weight of which this rank has a part."""

    owner: nn.Module
    name: str
    dim: int
    size: int
    """The size of the whole weight along `dim`."""
    pieces: int = 1
    """Matrices that lie one after the other along `dim`. Each is divided by itself."""
    copies: int = 1
    """So many ranks, one after the other, have the same part."""
    is_share: bool = False
    """Whether the part of each rank is an equal share of every number."""

    @property
    def part(self) -> nn.Parameter:
        """This rank's part."""
        part = self.owner._parameters[self.name]
        assert part is not None
        return part

    def part_of(self, matrix: torch.Tensor, shards: Shards) -> torch.Tensor:
        """Return this rank's part of a matrix that is as long along `dim` as the whole weight, and divided like it."""
        if self.copies > 1:
            return matrix.reshape(shards.size // self.copies, -1, matrix.shape[1])[shards.rank // self.copies]
        part = shards.part_of(self.size // self.pieces)
        in_pieces = matrix.reshape(*matrix.shape[: self.dim], self.pieces, -1, *matrix.shape[self.dim + 1 :])
        return in_pieces.narrow(self.dim + 1, part.start, part.stop - part.start).flatten(self.dim, self.dim + 1)

    def restored(self, part: torch.Tensor, shards: Shards) -> torch.Tensor:
        """Return the whole weight, of which `part` is this rank's part."""
        if self.is_share:
            return part * shards.size
        if self.copies > 1:
            parts = shards.gather(part[None], 0, shards.size)
            return parts[:: self.copies].flatten(0, 1)
        if self.pieces == 1:
            return shards.gather(part, self.dim, self.size)
        in_pieces = part.reshape(*part.shape[: self.dim], self.pieces, -1, *part.shape[self.dim + 1 :])
        return shards.gather(in_pieces, self.dim + 1, self.size // self.pieces).flatten(self.dim, self.dim + 1)


def divide(module: Any, shards: Shards, changes: Mapping[str, str]) -> list[DividedWeight]:
    """Turn a model that transformers has loaded in shards into one of plain tensors and modules.

    transformers reads only this rank's part of each weight. But it wraps the parts in DTensors, and the modules in
    functions that convert them at every call. The kernels, the tracer and CUDA graphs need plain modules, and a step
    has no time for it. So the tensors are unwrapped, and the modules of this file take the place of the functions:
    column-parallel and row-parallel layers as in Megatron-LM (arXiv 1909.08053). A column-parallel layer whose output
    stays divided remains an ordinary linear layer.

    `changes` is what `check_plan` has changed in the plan with which transformers has loaded the model.
    """
    plan, collectives = dict(module.tp_plan), Collectives(shards)
    divided = []
    plain: dict[int, nn.Parameter] = {}  # Tied weights stay one.
    parts = list(module.named_modules())
    for _, part in parts:
        if getattr(part, "_is_hooked", False):
            part.__dict__.pop("forward", None)
        for key, weight in part.named_parameters(recurse=False):
            if isinstance(weight.data, DTensor):
                divided += _divisions(part, key, weight.data)
                plain.setdefault(id(weight), nn.Parameter(weight.data.to_local().clone(), requires_grad=False))
                part._parameters[key] = plain[id(weight)]
    for name, part in parts:
        style = style_of(name, plan)
        if style in GATHERED_COLUMN:
            module.set_submodule(name, GatheredLinear(part, collectives))
        elif style == ROW or style in SPLIT_ROW:
            module.set_submodule(name, SummedLinear(part, collectives, splits_input=style != ROW))
        elif style == VOCABULARY:
            module.set_submodule(name, DividedEmbedding(part, collectives))
        elif style_of(name, changes) == REPLICATE:
            divided += _own_head(part, kv_heads_of(module.config.get_text_config(decoder=True)), shards)
        elif style in SUMMED:
            part.register_forward_hook(lambda _, __, output: collectives.sum(output))
            divided += _share_of_bias(part, shards)
        if isinstance(part, nn.Linear):
            part.out_features, part.in_features = part.weight.shape
    return divided


def linear_in(part: nn.Module) -> nn.Module:
    """Return the linear layer inside a module that `divide` has put around it, or else the module itself."""
    return part.linear if isinstance(part, GatheredLinear | SummedLinear) else part


def names_before(module: nn.Module) -> dict[nn.Module, str]:
    """Return the name of each module as it was before `divide`: a layer has that of the module around it."""
    names: dict[nn.Module, str] = {}
    for name, part in module.named_modules():
        names.setdefault(linear_in(part), name)
    return names


def _own_head(linear: nn.Linear, heads: int, shards: Shards) -> list[DividedWeight]:
    """Leave only the KV head that this rank's query heads use. There are `heads` of them, fewer than ranks."""
    copies = shards.size // heads
    found = []
    for name, weight in linear.named_parameters(recurse=False):
        own = weight.data.reshape(heads, -1, *weight.shape[1:])[shards.rank // copies]
        linear._parameters[name] = nn.Parameter(own.clone(), requires_grad=False)
        found.append(DividedWeight(linear, name, 0, len(weight), copies=copies))
    return found


def _share_of_bias(experts: nn.Module, shards: Shards) -> list[DividedWeight]:
    """Let each rank add a share of the bias that gpt-oss adds to the output of an expert, before the ranks' sum."""
    bias = experts._parameters.get(_BIAS_OF_OUTPUT)
    if bias is None:
        return []
    # Its numbers of heads allow only powers of two as sizes, so nothing is rounded.
    experts._parameters[_BIAS_OF_OUTPUT] = nn.Parameter(bias.data / shards.size, requires_grad=False)
    return [DividedWeight(experts, _BIAS_OF_OUTPUT, 0, len(bias), copies=shards.size, is_share=True)]


def _divisions(owner: nn.Module, name: str, weight: DTensor) -> list[DividedWeight]:
    (placement,) = weight.placements
    if placement.is_replicate():
        return []
    dim = placement.dim % weight.ndim  # type: ignore[attr-defined]
    # Only a strided placement has this number.
    pieces = getattr(placement, "split_factor", 1)
    return [DividedWeight(owner, name, dim, weight.shape[dim], pieces)]


@contextmanager
def whole(divided: Sequence[DividedWeight], shards: Shards) -> Iterator[None]:
    """Let each rank compute the whole model in this context, as one process would.

    Each layer gathers its weights for as long as it runs, so that a rank never holds more than one whole layer. The
    result is the reference for the divided model.
    """
    by_owner: dict[nn.Module, list[DividedWeight]] = defaultdict(list)
    for weight in divided:
        by_owner[weight.owner].append(weight)
    parts = {owner: {each.name: each.part for each in by_owner[owner]} for owner in by_owner}

    def restore(owner: nn.Module, _: Any) -> None:
        for each in by_owner[owner]:
            gathered = each.restored(parts[owner][each.name], shards)
            owner._parameters[each.name] = nn.Parameter(gathered, requires_grad=False)

    def divide_again(owner: nn.Module, *_: Any) -> None:
        owner._parameters.update(parts[owner])

    hooks = [owner.register_forward_pre_hook(restore) for owner in parts]
    hooks += [owner.register_forward_hook(divide_again) for owner in parts]
    shards.is_whole = True
    try:
        yield
    finally:
        shards.is_whole = False
        for hook in hooks:
            hook.remove()
        for owner in parts:
            divide_again(owner)
