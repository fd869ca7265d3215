"""Tells the chat template whether the model is to think, and how much."""

from inflight_gateway.asked_form import invalid
from inflight_gateway.formats import Formats
from inflight_gateway.messages_api.request import OutputConfig, Thinking

_LEVEL = "reasoning_effort"


def thinking_variables(thinking: Thinking | None, formats: Formats) -> dict[str, bool]:
    """Return the variables of the chat template. A model that cannot think just answers.

    Raises:
        ApiError: the model thinks, and its template cannot turn that off.
    """
    if thinking is None:
        return {}
    if (switch := formats.thinking_switch) is not None:
        return {switch: thinking.type != "disabled"}
    if thinking.type == "disabled" and formats.reasoning_format is not None:
        raise invalid("thinking", "thinking is disabled; the model's chat template cannot turn it off")
    return {}


def effort_variables(config: OutputConfig | None, formats: Formats) -> dict[str, str]:
    """Return the variables of the chat template for the effort. A model that knows no levels does what it does."""
    if config is None or config.effort is None or _LEVEL not in formats.template_variables:
        return {}
    return {_LEVEL: "xhigh" if config.effort == "max" else config.effort}
