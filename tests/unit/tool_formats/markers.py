"""The control tokens around calls of DeepSeek and Kimi, and calls between them."""

import json

DEEPSEEK_CALL, DEEPSEEK_SEP, DEEPSEEK_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
DEEPSEEK_CALLS, DEEPSEEK_CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
KIMI_CALLS, KIMI_CALLS_END = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
KIMI_CALL, KIMI_ARGUMENTS, KIMI_END = "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"
MARKERS_IN_TEXT = json.dumps(
    {"city": f'{DEEPSEEK_END} ``` {DEEPSEEK_CALLS_END} {KIMI_END} {KIMI_CALLS_END} " \u00dc', "where": {"x": [1, {}]}},
    ensure_ascii=False,
)


def deepseek_v3(name: str, arguments: str) -> str:
    return f"{DEEPSEEK_CALL}function{DEEPSEEK_SEP}{name}\n```json\n{arguments}\n```{DEEPSEEK_END}"


def deepseek_v31(name: str, arguments: str) -> str:
    return f"{DEEPSEEK_CALL}{name}{DEEPSEEK_SEP}{arguments}{DEEPSEEK_END}"


def kimi(call_id: str, arguments: str) -> str:
    return f"{KIMI_CALL}{call_id}{KIMI_ARGUMENTS}{arguments}{KIMI_END}"
