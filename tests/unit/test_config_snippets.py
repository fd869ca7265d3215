"""The lines for config.pbtxt in the documentation can be appended to the file as they are."""

import re
from pathlib import Path

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from serving.settings import read_settings

ROOT = Path(__file__).resolve().parents[2]
CONFIG = (ROOT / "model_repository" / "llm" / "config.pbtxt").read_text()
FENCED = re.compile(r"^ *```protobuf\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SNIPPETS = [
    pytest.param(found[1], id=f"{page.relative_to(ROOT)} {number}")
    for page in sorted((ROOT / "docs").rglob("*.md"))
    for number, found in enumerate(FENCED.finditer(page.read_text()), start=1)
]


@pytest.mark.parametrize("snippet", SNIPPETS)
def test_lines_for_the_configuration_are_valid(snippet: str) -> None:
    added = text_format.Parse(snippet, model_config_pb2.ModelConfig())
    whole = text_format.Parse(CONFIG + snippet, model_config_pb2.ModelConfig())
    assert added.parameters
    for name, value in added.parameters.items():
        assert whole.parameters[name] == value
    # An instance group would come beside the file's own, so that the model would be loaded twice.
    assert len(whole.instance_group) == 1
    read_settings({name: value.string_value for name, value in whole.parameters.items()})
