"""Parameters of config.pbtxt to engine settings."""

import dataclasses
import types
import typing
from collections.abc import Mapping

from inflight import EngineConfig

_TRUTHS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
# Triton's own, which its Python backend reads itself.
_NOT_OURS = frozenset({"EXECUTION_ENV_PATH", "FORCE_CPU_ONLY_INPUT_TENSORS"})


def engine_config(parameters: Mapping[str, str]) -> EngineConfig:
    """Settings from the `parameters` of config.pbtxt; an empty value counts as not given.

    Raises:
        ValueError: an unknown parameter, or a value that does not fit; the message names both.
    """
    hints = typing.get_type_hints(EngineConfig)
    given = {key: text.strip() for key, text in parameters.items() if key not in _NOT_OURS and text.strip()}
    unknown = sorted(given.keys() - hints.keys())
    if unknown:
        raise ValueError(
            f"config.pbtxt has unknown parameters {', '.join(unknown)}; known are {', '.join(sorted(hints))}"
        )
    required = [f.name for f in dataclasses.fields(EngineConfig) if f.default is dataclasses.MISSING]
    for name in required:
        if name not in given:
            raise ValueError(f"config.pbtxt lacks the parameter {name}")
    return EngineConfig(**{key: _value(key, text, hints[key]) for key, text in given.items()})


def _value(name: str, text: str, hint: object) -> typing.Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    kind = next(k for k in kinds if k is not type(None))
    try:
        return _TRUTHS[text.lower()] if kind is bool else kind(text)  # type: ignore[operator]
    except (ValueError, KeyError):
        raise ValueError(f"parameter {name} is {text!r}; it must be of type {kind.__name__}") from None  # type: ignore[attr-defined]
