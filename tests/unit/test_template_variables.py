"""Which variables a chat template heeds."""

import pytest

from inflight.text.template_variables import template_variables


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("{% for m in messages %}{{ m.tools }}{% endfor %}<tools></tools>", ["messages"]),
        ("{% if tools %}{% for t in tools %}{{ t | tojson }}{% break %}{% endfor %}{% endif %}", ["tools"]),
        ("{% if not tools is defined %}{% set tools = none %}{% endif %}{{ tools }}", ["tools"]),
        ("{% generation %}{{ xml_tools }}{%- endgeneration -%}", ["xml_tools"]),
        ("{% set reasoning = reasoning if reasoning is not undefined else true %}{{ reasoning }}", ["reasoning"]),
        ("{% if %}", []),
        # The engine puts tools where such a template looks for them.
        ("{% for message in messages %}{{ message['tools'] }}{% endfor %}", ["messages", "tools"]),
        ("{% for message in messages %}{{ message.tools }}{{ message.tools_of }}{% endfor %}", ["messages", "tools"]),
        ("{% for message in messages %}{{ message.tools_of }}{% endfor %}", ["messages"]),
        ("{% for message in messages %}{{ message.tools or tools }}{% endfor %}", ["messages", "tools"]),
    ],
)
def test_variables(template: str, expected: list[str]) -> None:
    assert template_variables(template) == expected
