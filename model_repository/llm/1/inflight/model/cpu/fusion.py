"""Fuses sequences of operators in a traced graph into single CPU kernels."""

from typing import Any

import torch

# The patterns are in the language of TorchScript's graphs. The matcher does not check the inputs of a pattern, not even
# constants, so another formula may match too. The caller must compare results before and after.
_SILU_MUL = """
graph(%gate, %up):
  %activated = aten::silu(%gate)
  %y = aten::mul(%activated, %up)
  return (%y)
"""
_MUL_SILU = _SILU_MUL.replace("(%activated, %up)", "(%up, %activated)")
_GELU_MUL = """
graph(%gate, %up, %approximate):
  %activated = inflight::gelu(%gate, %approximate)
  %y = aten::mul(%activated, %up)
  return (%y)
"""
_MUL_GELU = _GELU_MUL.replace("(%activated, %up)", "(%up, %activated)")
_LINEAR_SILU_MUL = """
graph(%x, %packed, %bias, %widths, %last_dim):
  %both = inflight::linear(%x, %packed, %bias)
  %columns = aten::split_with_sizes(%both, %widths, %last_dim)
  %gate, %up = prim::ListUnpack(%columns)
  %y = inflight::silu_mul(%gate, %up)
  return (%y)
"""
_LINEAR_INT8_SILU_MUL = _LINEAR_SILU_MUL.replace("linear(", "linear_int8(").replace("%packed,", "%packed, %scales,")
_LINEAR_INT4_SILU_MUL = _LINEAR_SILU_MUL.replace("linear(", "linear_int4(")
# The matcher starts at the operator of the first result, which must be the last operator of the pattern.
_ADD_NORM = """
graph(%x, %y, %one, %weight, %eps):
  %sum = aten::add(%x, %y, %one)
  %normed = inflight::rms_norm(%sum, %weight, %eps)
  return (%normed, %sum)
"""
_ROTATE = """
graph(%x, %cos, %sin, %width_dim, %start, %one, %two, %end, %last_dim):
  %x_cos = aten::mul(%x, %cos)
  %width1 = aten::size(%x, %width_dim)
  %number1 = prim::NumToTensor(%width1)
  %half1 = aten::floor_divide(%number1, %two)
  %border1 = aten::Int(%half1)
  %left = aten::slice(%x, %width_dim, %start, %border1, %one)
  %width2 = aten::size(%x, %width_dim)
  %number2 = prim::NumToTensor(%width2)
  %half2 = aten::floor_divide(%number2, %two)
  %border2 = aten::Int(%half2)
  %right = aten::slice(%x, %width_dim, %border2, %end, %one)
  %minus_right = aten::neg(%right)
  %halves = prim::ListConstruct(%minus_right, %left)
  %turned = aten::cat(%halves, %last_dim)
  %turned_sin = aten::mul(%turned, %sin)
  %y = aten::add(%x_cos, %turned_sin, %one)
  return (%y)
"""
_CHOSEN = """
graph(%experts, %weights, %mixture):
  %chosen, %their_weights = inflight_choice::chosen(%experts, %weights, %mixture)
  return (%chosen, %their_weights)
"""
_FUSIONS = (
    (_SILU_MUL, "inflight::silu_mul(%gate, %up)"),
    (_MUL_SILU, "inflight::silu_mul(%gate, %up)"),
    (_GELU_MUL, "inflight::gelu_mul(%gate, %up, %approximate)"),
    (_MUL_GELU, "inflight::gelu_mul(%gate, %up, %approximate)"),
    (_ADD_NORM, "inflight::add_rms_norm(%x, %y, %weight, %eps)"),
    (_ROTATE, "inflight::rotate(%x, %cos, %sin)"),
)
_GATED = (
    (_LINEAR_SILU_MUL, "inflight::linear_silu_mul(%x, %packed, %bias)"),
    (_LINEAR_INT8_SILU_MUL, "inflight::linear_int8_silu_mul(%x, %packed, %scales, %bias)"),
    (_LINEAR_INT4_SILU_MUL, "inflight::linear_int4_silu_mul(%x, %packed, %bias)"),
)


def fuse(graph: Any, *, gated: bool = True) -> None:
    """Replace the patterns by kernels in a TorchScript graph that has not run yet.

    `gated`: also those of a product and its gate, whose kernels round once in place of twice.
    """
    # Equal constants become one value, as in the patterns.
    torch._C._jit_pass_constant_pooling(graph)  # type: ignore[attr-defined]
    for pattern, kernel in _FUSIONS + (_GATED if gated else ()):
        arguments, *_, end = pattern.strip().splitlines()
        results = end.strip().removeprefix("return (").removesuffix(")")
        _rewrite(graph, pattern, f"{arguments}\n  {results} = {kernel}\n{end}")


def fix_choices(graph: Any) -> None:
    """Remove the operators by which choices of experts can be changed. See `changeable_choices`."""
    _rewrite(graph, _CHOSEN, "graph(%experts, %weights, %mixture):\n  return (%experts, %weights)")


def _rewrite(graph: Any, pattern: str, replacement: str) -> None:
    torch._C._jit_pass_custom_pattern_based_rewrite_graph(pattern, replacement, graph)
