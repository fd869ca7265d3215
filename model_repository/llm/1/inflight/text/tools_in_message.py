"""Tools for chat templates that read them from the system message, as Phi-4-mini's does."""

import json
from collections.abc import Sequence
from typing import Any

from inflight.text.template_variables import reads_tools_of_message

# Of Phi-4-mini's model card.
_SYSTEM = {"role": "system", "content": "You are a helpful assistant with some tools."}


def with_tools(
    messages: Sequence[dict[str, Any]], tools: Sequence[dict[str, Any]] | None, template: str
) -> list[dict[str, Any]]:
    """Return messages with the tools in the system message, as JSON, if the template looks for them there."""
    if tools is None or not reads_tools_of_message(template):
        return list(messages)
    first, others = (messages[0], messages[1:]) if messages[0]["role"] == "system" else (_SYSTEM, messages)
    return [{**first, "tools": json.dumps([tool["function"] for tool in tools], ensure_ascii=False)}, *others]
