"""One forward pass of a transformers model over a flat row of tokens."""

import inspect

import torch


def forward(
    module: torch.nn.Module, token_ids: torch.Tensor, positions: torch.Tensor, rows: torch.Tensor | None
) -> torch.Tensor:
    """Logits [len(rows), vocabulary] of a flat row of tokens [T] at `positions` [T]; of all tokens if `rows` is None.

    The model's own head runs, for it may scale or cap logits, but only on the rows that are wanted if it lets us.
    """
    arguments = {"input_ids": token_ids[None], "position_ids": positions[None], "use_cache": False}
    choosy = rows is not None and takes(module, "logits_to_keep")
    if choosy:
        arguments["logits_to_keep"] = rows
    logits: torch.Tensor = module(**arguments).logits[0]
    return logits if rows is None or choosy else logits[rows]


def takes(module: torch.nn.Module, name: str) -> bool:
    """Whether the model's forward has an argument of that name."""
    return name in inspect.signature(module.forward).parameters
