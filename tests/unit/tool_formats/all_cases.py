"""The cases of all formats."""

from tests.unit.tool_formats import (
    apertus,
    cohere,
    deepseek,
    dsml,
    gemma,
    glm,
    glm4,
    granite3,
    harmony,
    hermes,
    hy3,
    internlm,
    kimi_k2,
    lfm2,
    llama3,
    llama3_functions,
    minicpm3,
    minimax_m2,
    mistral,
    nemotron,
    olmo3,
    phi4_mini,
    pythonic,
    qwen3_coder,
    smollm2,
    xlam,
)
from tests.unit.tool_formats.case import Case

_FAMILIES = (
    *(apertus, cohere, deepseek, dsml, gemma, glm, glm4, granite3, harmony, hermes, hy3, internlm, kimi_k2),
    *(lfm2, llama3, llama3_functions, minicpm3, minimax_m2, mistral, nemotron, olmo3, phi4_mini, pythonic),
    *(qwen3_coder, smollm2, xlam),
)
CASES: list[Case] = [case for family in _FAMILIES for case in family.CASES]
