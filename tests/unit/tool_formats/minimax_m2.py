"""Answers of MiniMax M2, and the pieces that they are read as."""

from inflight_gateway.pieces import Text
from tests.unit.tool_formats.case import Case, calls, no_call

CASES: list[Case] = [
    no_call(
        "minimax-m2", 'Anthropic\'s\n<invoke name="now"></invoke> and <minimax:tool_call> differ </minimax:tool_call>.'
    ),
    (
        "minimax-m2",
        'I look.\n<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">Ulm\n"</p></parameter>\n'
        '<parameter name="days">3</parameter>\n<parameter name="where">{"x": 1}</parameter>\n'
        '<parameter name="note">5</parameter>\n<parameter name="unit">C</parameter>\n</invoke>\n'
        '<invoke name="now">\n</invoke>\n</minimax:tool_call>\nDone.',
        [
            Text("I look."),
            *calls(
                ("weather", '{"city": "Ulm\\n\\"</p>", "days": 3, "where": {"x": 1}, "note": "5", "unit": "C"}'),
                ("now", "{}"),
            ),
            Text("Done."),
        ],
    ),
    (
        "minimax-m2",
        '<minimax:tool_call><invoke name="weather"><parameter name="note">null</parameter></minimax:tool_call>',
        calls(("weather", '{"note": null}')),
    ),
    (
        "minimax-m2",
        '<minimax:tool_call>\n<invoke name="weather">\n<parameter name="city">U',
        calls(("weather", '{"city": "U')),
    ),
]
