"""The parameters of the model `completion` are read as those of `llm` are."""

import re
from pathlib import Path

import pytest

from completion_config import CompletionConfig
from serving.settings import read_values

FOLDER = Path(__file__).parents[2] / "model_repository/completion"
GIVEN = {"max_concurrent_requests": "8", "max_queued_requests": "0"}


def read(parameters: dict[str, str]) -> CompletionConfig:
    return CompletionConfig(**read_values(parameters, CompletionConfig))


@pytest.mark.parametrize(
    "path", [FOLDER / "config.pbtxt", *sorted((FOLDER / "configs").iterdir())], ids=lambda p: p.stem
)
def test_the_parameters_that_we_ship_are_known(path: Path) -> None:
    pairs = re.findall(r'^ *\{ key: "(\w+)" value: \{ string_value: "(.*?)" \}', path.read_text(), re.MULTILINE)
    assert read(dict(pairs)).max_concurrent_requests == 120


def test_values_are_read_as_the_settings_types() -> None:
    given = {**GIVEN, "llm_has_batch_dimension": "True", "generation_model_name": "qwen", "context_model_name": " "}
    assert read(given) == CompletionConfig(8, 0, llm_has_batch_dimension=True, generation_model_name="qwen")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_queued_requests": "8"}, "config.pbtxt lacks the parameter max_concurrent_requests"),
        ({**GIVEN, "max_concurrent_requests": "all"}, "max_concurrent_requests is 'all'; it must be of type int"),
        ({**GIVEN, "max_concurrent_requests": "0"}, "max_concurrent_requests is 0; it must be at least 1"),
        ({**GIVEN, "max_queued_requests": "-1"}, "max_queued_requests is -1; it must be at least 0"),
        ({**GIVEN, "llm_has_batch_dimension": "maybe"}, "llm_has_batch_dimension is 'maybe'; it must be of type bool"),
        ({**GIVEN, "on_model_death": "stay"}, "on_model_death is 'stay'; it must be exit or none"),
        (
            {**GIVEN, "model_name": "qwen"},
            "config.pbtxt has unknown parameters model_name; known are context_model_name",
        ),
    ],
    ids=["missing", "type", "none at once", "negative", "truth", "choice", "unknown"],
)
def test_what_is_wrong_is_named(given: dict[str, str], says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        read(given)
