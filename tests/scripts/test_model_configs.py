"""The variants of the configurations are those that their source makes."""

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from scripts.launch.model_repository import MODEL_REPOSITORY
from scripts.model_configs import configs


def read(model: str) -> model_config_pb2.ModelConfig:
    return text_format.Parse((MODEL_REPOSITORY / model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())


def test_variants_are_up_to_date() -> None:
    made = dict(configs())
    assert {path: path.read_text() for path in made} == made
    for model in ("llm", "completion"):
        there = set((MODEL_REPOSITORY / model / "configs").glob("*.pbtxt"))
        assert there == {path for path in made if path.parts[-3] == model}


def test_completion_takes_and_gives_what_llm_does_but_for_streaming() -> None:
    llm, completion = read("llm"), read("completion")
    assert [tensor for tensor in llm.input if tensor.name != "stream"] == list(completion.input)
    assert list(llm.output) == list(completion.output)
