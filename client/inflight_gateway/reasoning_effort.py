"""Tells the chat template how much the model is to think."""

from typing import Any

from inflight_gateway.asked_form import invalid
from inflight_gateway.chat_request import Effort
from inflight_gateway.formats import Formats

_LEVEL = "reasoning_effort"


def effort_variables(effort: Effort | None, field: str, formats: Formats) -> dict[str, Any]:
    """Return the variables of the chat template that stand for OpenAI's `reasoning_effort`, which came in `field`.

    Templates such as that of gpt-oss have a variable of this name. Others can only turn thinking off.

    Raises:
        ApiError: the template has no such variable.
    """
    if effort is None:
        return {}
    has_levels, switch = _LEVEL in formats.template_variables, formats.thinking_switch
    if not has_levels and switch is None:
        raise invalid(field, f"{field} is {effort!r}; it must be absent, as the model's chat template does not use it")
    if not has_levels and effort != "none":
        raise invalid(field, f"{field} is {effort!r}; it must be 'none' or absent, as the model knows no levels")
    return ({_LEVEL: effort} if has_levels else {}) | ({switch: False} if switch and effort == "none" else {})
