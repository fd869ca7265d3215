"""How families of models write tool calls: a file each, with the base `ToolFormat`."""

from inflight_gateway.tool_formats.apertus import Apertus
from inflight_gateway.tool_formats.cohere import Cohere
from inflight_gateway.tool_formats.deepseek import DeepSeekV3, DeepSeekV31
from inflight_gateway.tool_formats.dsml import DeepSeekV4, DeepSeekV32, DeepSeekV41
from inflight_gateway.tool_formats.gemma import FunctionGemma, Gemma4
from inflight_gateway.tool_formats.glm import GLM, GLM47
from inflight_gateway.tool_formats.glm4 import GLM4
from inflight_gateway.tool_formats.granite3 import Granite3
from inflight_gateway.tool_formats.harmony import Harmony
from inflight_gateway.tool_formats.hermes import Hermes
from inflight_gateway.tool_formats.hy3 import Hy3
from inflight_gateway.tool_formats.internlm import InternLM
from inflight_gateway.tool_formats.kimi_k2 import KimiK2
from inflight_gateway.tool_formats.lfm2 import LFM2
from inflight_gateway.tool_formats.llama3 import Llama3
from inflight_gateway.tool_formats.llama3_functions import Llama3Functions
from inflight_gateway.tool_formats.minicpm3 import MiniCPM3
from inflight_gateway.tool_formats.minimax_m2 import MiniMaxM2
from inflight_gateway.tool_formats.mistral import Mistral, NewerMistral
from inflight_gateway.tool_formats.nemotron import Jamba, Nemotron
from inflight_gateway.tool_formats.olmo3 import OLMo3
from inflight_gateway.tool_formats.phi4_mini import Functools, Phi4Mini
from inflight_gateway.tool_formats.pythonic import Pythonic
from inflight_gateway.tool_formats.qwen3_coder import Qwen3Coder, SeedOSS
from inflight_gateway.tool_formats.smollm2 import SmolLM2
from inflight_gateway.tool_formats.tool import Tool, WrittenCall
from inflight_gateway.tool_formats.tool_format import ToolFormat
from inflight_gateway.tool_formats.unenforceable import Unenforceable
from inflight_gateway.tool_formats.xlam import XLAM

_ALL = (
    *(Apertus(), Cohere(), DeepSeekV3(), DeepSeekV31(), DeepSeekV32(), DeepSeekV4(), DeepSeekV41(), FunctionGemma()),
    *(Functools(), Gemma4(), GLM(), GLM4(), GLM47(), Granite3(), Harmony(), Hermes(), Hy3(), InternLM(), Jamba()),
    *(KimiK2(), LFM2(), Llama3(), Llama3Functions(), MiniCPM3(), MiniMaxM2(), Mistral(), NewerMistral(), Nemotron()),
    *(OLMo3(), Phi4Mini(), Pythonic(), Qwen3Coder(), SeedOSS(), SmolLM2(), XLAM()),
)
FORMATS: dict[str, ToolFormat] = {one.name: one for one in _ALL}
"""All formats by name."""

__all__ = ["FORMATS", "Tool", "ToolFormat", "Unenforceable", "WrittenCall"]
