"""Answers of Mistral, older and newer, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

CASES: list[Case] = [
    no_call("mistral", "Write\n[TOOL_CALLS] \nbefore a call."),
    no_call("mistral", "Write\n[TOOL_CALLS] before a call, then its arguments, such as {}."),
    ("mistral", f'[TOOL_CALLS] [{{"name": "weather", "arguments": {ULM}}}]', calls(("weather", ULM))),
    (
        "mistral",
        f'Well.[TOOL_CALLS]{{"name": "weather", "arguments": {ULM}}}',
        [Text("Well."), *calls(("weather", ULM))],
    ),
    (
        "mistral-args",
        f"[TOOL_CALLS]weather[ARGS]{ULM}[TOOL_CALLS]now[CALL_ID]123456789[ARGS]{{}}[TOOL_CALLS]now{{}}",
        calls(("weather", ULM), ("now", "{}"), ("now", "{}")),
    ),
    ("mistral", "[TOOL_CALLS] nothing", [Text("[TOOL_CALLS] nothing")]),
    ("mistral", "[TOOL_CALLS]a[TOOL_CALLS]now{}", [Text("[TOOL_CALLS]a"), *calls(("now", "{}"))]),
    ("mistral", "[TOOL_CALLS]a[CALL_ID]1[TOOL_CALLS]now{}", [Text("[TOOL_CALLS]a[CALL_ID]1"), *calls(("now", "{}"))]),
]
