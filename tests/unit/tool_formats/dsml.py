"""Answers of DeepSeek V3.2, V4 and V4.1, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import ULM, Case, calls, no_call

# These bars are not those of ASCII.
DSML = "｜DSML｜"  # noqa: RUF001
BEGIN, END = f"<{DSML}function_calls>", f"</{DSML}function_calls>"
BEGIN_V4, END_V4 = f"<{DSML}tool_calls>", f"</{DSML}tool_calls>"
INVOKE, INVOKE_END = f'<{DSML}invoke name="', f"</{DSML}invoke>"


def argument(key: str, kind: str, value: str) -> str:
    return f'<{DSML}parameter name="{key}"{kind}>{value}</{DSML}parameter>\n'


def weather(*arguments: str) -> str:
    return f'{INVOKE}weather">\n{"".join(arguments)}{INVOKE_END}\n'


TEXT, JSON = ' string="true"', ' string="false"'

CASES: list[Case] = [
    no_call("deepseek-v3.2", f'The section\n{BEGIN}\nends with {END}, and the tag {INVOKE}now"> is in it.\n'),
    no_call("deepseek-v3.2", f'{BEGIN}\n{INVOKE}a b"> is no call.'),
    no_call("deepseek-v4", f"Not {BEGIN}\n{weather()}{END}, if that is V3.2."),
    (
        "deepseek-v3.2",
        f"I look.\n\n{BEGIN}\n"
        + weather(
            argument("city", TEXT, 'Ulm <b>"\n</b>'), argument("days", JSON, "3"), argument("where", JSON, '{"x": 1}')
        )
        + f'{INVOKE}now">\n\n{INVOKE_END}\n{END}\nDone.',
        [
            Text("I look."),
            *calls(("weather", '{"city": "Ulm <b>\\"\\n</b>", "days": 3, "where": {"x": 1}}'), ("now", "{}")),
            Text("Done."),
        ],
    ),
    # The answer says whether a value is a text, and only if it does not, the schema does.
    (
        "deepseek-v4",
        BEGIN_V4
        + weather(argument("note", TEXT, "null"), argument("days", TEXT, "3"), argument("city", JSON, "5"))
        + END_V4,
        calls(("weather", '{"note": "null", "days": "3", "city": 5}')),
    ),
    (
        "deepseek-v4",
        BEGIN_V4
        + weather(argument("note", "", "null"), argument("city", "", "5"), argument("days", JSON, "many"))
        + END_V4,
        calls(("weather", '{"note": null, "city": "5", "days": "many"}')),
    ),
    # What models have written: the arguments as one object, no end of the call or of the section.
    (
        "deepseek-v4",
        f'{BEGIN_V4}\n{INVOKE}weather">\n{ULM}\n{INVOKE_END}\n{INVOKE}now">\n{{}}\n{INVOKE_END}',
        calls(("weather", ULM), ("now", "{}")),
    ),
    (
        "deepseek-v3.2",
        f'{BEGIN}\n{INVOKE}weather">\n{argument("days", JSON, "3")}{END}\n{BEGIN}{INVOKE}now">{INVOKE_END} So.',
        [*calls(("weather", '{"days": 3}'), ("now", "{}")), Text("So.")],
    ),
    (
        "deepseek-v4.1",
        f'I look.\n\n<{DSML} calls>\n<{DSML} invoke name="weather">\n<{DSML} parameter name="city" string="true">Ulm'
        f"</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>",
        [Text("I look."), *calls(("weather", '{"city": "Ulm"}'))],
    ),
    (
        "deepseek-v3.2",
        f'{BEGIN}\n{INVOKE}now">\n{INVOKE_END}\n{INVOKE}no name">',
        [*calls(("now", "{}")), Text(f'{INVOKE}no name">')],
    ),
    (
        "deepseek-v3.2",
        f'{BEGIN}\n{INVOKE}weather">\n<{DSML}parameter name="city" string="true">U',
        calls(("weather", '{"city": "U')),
    ),
]
