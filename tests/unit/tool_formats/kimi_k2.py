"""Answers of Kimi K2, and the pieces that they are read as."""

import json

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call
from tests.unit.tool_formats.markers import (
    KIMI_ARGUMENTS,
    KIMI_CALL,
    KIMI_CALLS,
    KIMI_CALLS_END,
    KIMI_END,
    MARKERS_IN_TEXT,
    kimi,
)

CASES: list[Case] = [
    no_call("kimi-k2", f"Write {KIMI_CALLS} {KIMI_CALL} a b {KIMI_ARGUMENTS} {KIMI_END}{KIMI_CALLS_END} there.\n"),
    no_call("kimi-k2", f"{KIMI_CALLS}{KIMI_CALL}functions.now:x{KIMI_ARGUMENTS}{{}}"),
    (
        "kimi-k2",
        f"{kimi('functions.now:0', '{{')}{kimi('functions.now:1', '[[]')}",
        calls(("now", "{{"), ("now", "[[]")),
    ),
    (
        "kimi-k2",
        f"I look. {KIMI_CALLS}{kimi('functions.weather:0', ULM)}{kimi('functions.weather:12', MARKERS_IN_TEXT)}"
        f"{kimi('functions.a.b-c:2', '{}')}{KIMI_CALLS_END}",
        [Text("I look."), *calls(("weather", ULM), ("weather", MARKERS_IN_TEXT), ("a.b-c", "{}"))],
    ),
    # What real models have written: no beginning of the section, two ends, spaces, and other ids.
    (
        "kimi-k2",
        f"null{kimi(' functions.now:1 ', ' {} ')}{KIMI_CALLS_END}{KIMI_CALLS_END}\n"
        f"Then {kimi('now:3', '')}{kimi('now', '[]')}",
        [Text("null"), *calls(("now", "{}")), Text("Then"), *calls(("now", "{}"), ("now", "[]"))],
    ),
    ("kimi-k2", kimi("functions.weather:0", json.dumps(ULM)), calls(("weather", ULM))),
    ("kimi-k2", f'{KIMI_CALLS}{KIMI_CALL}functions.now:0{KIMI_ARGUMENTS}{{"a": [', calls(("now", '{"a": ['))),
    ("kimi-k2", f"{KIMI_CALLS}{KIMI_CALL}functions.now", [Text(f"{KIMI_CALLS}{KIMI_CALL}functions.now")]),
]
