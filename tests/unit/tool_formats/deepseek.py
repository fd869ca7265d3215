"""Answers of DeepSeek V3 and V3.1, and the pieces that they are read as."""

from inflight_gateway.pieces import Call, Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call
from tests.unit.tool_formats.markers import (
    DEEPSEEK_CALL,
    DEEPSEEK_CALLS,
    DEEPSEEK_CALLS_END,
    DEEPSEEK_END,
    DEEPSEEK_SEP,
    MARKERS_IN_TEXT,
    deepseek_v3,
    deepseek_v31,
)

CASES: list[Case] = [
    no_call(
        "deepseek-v3",
        f"Write\n{DEEPSEEK_CALLS} {DEEPSEEK_CALLS_END} or {DEEPSEEK_CALL}function{DEEPSEEK_SEP}a b\n there.",
    ),
    no_call("deepseek-v3.1", f"Write\n\n{DEEPSEEK_CALLS}\n{DEEPSEEK_CALL} a b{DEEPSEEK_SEP} {DEEPSEEK_END} there."),
    (
        "deepseek-v3",
        f"I look.\n\n{DEEPSEEK_CALLS}{deepseek_v3('weather', ULM)}\n{deepseek_v3('weather', MARKERS_IN_TEXT)}\n"
        f"{deepseek_v3('now', '{}')}{DEEPSEEK_CALLS_END}",
        [Text("I look."), *calls(("weather", ULM), ("weather", MARKERS_IN_TEXT), ("now", "{}"))],
    ),
    # Models forget the markers around the calls, or the block around the arguments.
    (
        "deepseek-v3",
        f"{deepseek_v3('now', '')} Then {DEEPSEEK_CALL}function{DEEPSEEK_SEP}weather{ULM}{DEEPSEEK_END}"
        f"{DEEPSEEK_CALLS_END}{DEEPSEEK_CALLS} {DEEPSEEK_CALL}function{DEEPSEEK_SEP}now```json {{}}```",
        [*calls(("now", "{}")), Text("Then"), *calls(("weather", ULM), ("now", "{}"))],
    ),
    (
        "deepseek-v3",
        f"{DEEPSEEK_CALLS}{DEEPSEEK_CALL}function{DEEPSEEK_SEP}weather\n```json\n{ULM}{deepseek_v3('now', '{}')}",
        calls(("weather", ULM), ("now", "{}")),
    ),
    ("deepseek-v3", f"{DEEPSEEK_CALLS}{deepseek_v3('weather', ULM).partition('ys')[0]}", calls(("weather", ULM[:-7]))),
    (
        "deepseek-v3",
        f"{DEEPSEEK_CALLS}{DEEPSEEK_CALL}function{DEEPSEEK_SEP}wea",
        [Text(f"{DEEPSEEK_CALLS}{DEEPSEEK_CALL}function{DEEPSEEK_SEP}wea")],
    ),
    (
        "deepseek-v3.1",
        f"I look.\n\n{DEEPSEEK_CALLS}{deepseek_v31('weather', ULM)}{deepseek_v31('weather', MARKERS_IN_TEXT)}"
        f"{deepseek_v31('function', '{}')}{DEEPSEEK_CALLS_END}",
        [Text("I look."), *calls(("weather", ULM), ("weather", MARKERS_IN_TEXT), ("function", "{}"))],
    ),
    (
        "deepseek-v3.1",
        f"{DEEPSEEK_CALLS}\n{deepseek_v31(' now ', '')}\n{deepseek_v31('now', 'none')}{DEEPSEEK_CALLS_END}\nDone.\n",
        [*calls(("now", "{}"), ("now", "{}")), Text("Done.\n")],
    ),
    (
        "deepseek-v3.1",
        f"{DEEPSEEK_CALLS}{DEEPSEEK_CALL}now{DEEPSEEK_SEP}{deepseek_v31('now', '{}')}}}{DEEPSEEK_CALLS_END}",
        [Call("now"), *calls(("now", "{}")), Text("}")],
    ),
    # A bracket is missing, so the arguments end at the marker.
    (
        "deepseek-v3",
        f"{DEEPSEEK_CALLS}{deepseek_v3('weather', ULM[:-1])}{deepseek_v3('now', '{}')}{DEEPSEEK_CALLS_END}",
        calls(("weather", f"{ULM[:-1]}\n```"), ("now", "{}")),
    ),
    # Models of one version write calls as the other does, and each in a section of its own.
    *(
        (
            name,
            f"{DEEPSEEK_CALLS}\n{deepseek_v3('weather', ULM)}\n{deepseek_v31('now', '{}')}\n{DEEPSEEK_CALLS_END}\n"
            f"{DEEPSEEK_CALLS}{deepseek_v3('now', '')}{deepseek_v31('function', '')}{DEEPSEEK_CALLS_END}",
            calls(("weather", ULM), ("now", "{}"), ("now", "{}"), ("function", "{}")),
        )
        for name in ("deepseek-v3", "deepseek-v3.1")
    ),
    (
        "deepseek-v3.1",
        f'{DEEPSEEK_CALLS}{DEEPSEEK_CALL}weather{DEEPSEEK_SEP}{{"city": "U',
        calls(("weather", '{"city": "U')),
    ),
]
