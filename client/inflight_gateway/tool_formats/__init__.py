"""How families of models write tool calls: a file each, with the base `ToolFormat`."""

from inflight_gateway.tool_formats.hermes import Hermes
from inflight_gateway.tool_formats.llama3 import Llama3
from inflight_gateway.tool_formats.mistral import Mistral, NewerMistral
from inflight_gateway.tool_formats.qwen3_coder import Qwen3Coder
from inflight_gateway.tool_formats.smollm2 import SmolLM2
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat
from inflight_gateway.tool_formats.unenforceable import Unenforceable

FORMATS: dict[str, ToolFormat] = {
    one.name: one for one in (Hermes(), Llama3(), Mistral(), NewerMistral(), Qwen3Coder(), SmolLM2())
}
"""All formats by name."""

__all__ = ["FORMATS", "Tool", "ToolFormat", "Unenforceable", "WrittenCall"]
