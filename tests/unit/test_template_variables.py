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
        ("{% if %}", []),
    ],
)
def test_variables(template: str, expected: list[str]) -> None:
    assert template_variables(template) == expected
