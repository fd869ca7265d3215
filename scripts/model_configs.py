"""Writes the variants of the models' configurations, so that inputs and outputs stand in one place.

`python -m scripts.model_configs` makes `llm/configs/*.pbtxt` from `llm/config.pbtxt`, and the inputs and outputs of
`completion` from those of `llm`. A variant is chosen with `tritonserver --model-config-name=NAME`.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from scripts.launch.model_repository import MODEL_REPOSITORY

_BATCH_NOTE = "Every tensor has a batch dimension in front."


@dataclass(frozen=True)
class Profile:
    """What a variant of `llm` sets otherwise."""

    about: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    batched: str = ""
    """For variants with a batch dimension: `max_batch_size` and `dynamic_batching`."""


PROFILES = {
    "latency": Profile(
        "Small batches and no waiting: short steps, and a queue so short that a request runs soon or is refused.",
        {"max_num_seqs": "8", "max_num_batched_tokens": "128", "max_queue_size": "32"},
    ),
    "throughput": Profile(
        "As many tokens a second as can be had: large batches, large steps, a long queue.",
        {
            "max_num_seqs": "256",
            "max_num_batched_tokens": "8192",
            "token_budget": "fixed",
            "max_queue_size": "8192",
        },
    ),
    "mixed": Profile(
        "Interactive and batch traffic together: three priorities, of which a higher one takes the place of a lesser.",
        {
            "max_num_seqs": "128",
            "max_num_batched_tokens": "512",
            "scheduling_policy": "priority",
            "priority_levels": "3",
            "default_priority_level": "2",
        },
    ),
    "trtllm": Profile(
        f"For clients of TensorRT-LLM's models. {_BATCH_NOTE}\n"
        "Triton's batches make no difference to the engine, which forms its own; the delay only groups arrivals.",
        batched="""
            max_batch_size: 64
            dynamic_batching { preferred_batch_size: [ 8, 32 ] max_queue_delay_microseconds: 1000 }
        """,
    ),
    "triton_queue": Profile(
        f"Triton's own queue in front. {_BATCH_NOTE}\n"
        "Overflow, priorities, timeouts and nv_inference_pending_request_count are Triton's; so is the price: with\n"
        "a queue policy its batcher may hold back a request for up to 500 ms. Priority and timeout are the fields of\n"
        "Triton's protocols here, not our inputs; `generate` cannot set them. max_inflight_requests is the window:\n"
        "execute() waits while so many are in the engine, and what comes meanwhile waits in Triton's queue.",
        {"max_inflight_requests": "64"},
        # The larger Triton's batches, the fewer of a burst are held back, and the more overshoot the window. A burst of
        # 64 takes 10 s with batches of 1, 1 to 3 s with 8, 0.5 to 1.5 s with 16; without a policy it takes 0.5 s.
        batched="""
            max_batch_size: 16
            dynamic_batching {
              max_queue_delay_microseconds: 100
              priority_levels: 3
              default_priority_level: 2
              default_queue_policy {
                max_queue_size: 100
                timeout_action: REJECT
                default_timeout_microseconds: 600000000
                allow_timeout_override: true
              }
            }
        """,
    ),
}


def configs(repository: Path = MODEL_REPOSITORY) -> Iterator[tuple[Path, str]]:
    """The path in `repository` and the text of every file that is made from another."""
    llm = _read(repository / "llm" / "config.pbtxt")
    for name, profile in PROFILES.items():
        yield repository / "llm" / "configs" / f"{name}.pbtxt", _text(_variant(llm, profile), profile.about)
    completion = _read(repository / "completion" / "config.pbtxt")
    batched = model_config_pb2.ModelConfig()
    batched.CopyFrom(completion)
    batched.max_batch_size = 64
    yield (
        repository / "completion" / "configs" / "batched.pbtxt",
        _text(batched, f"Several prompts in one request. {_BATCH_NOTE}"),
    )
    batched.parameters["llm_has_batch_dimension"].string_value = "true"
    for name, profile in PROFILES.items():
        if profile.batched:
            yield (
                repository / "completion" / "configs" / f"{name}.pbtxt",
                _text(batched, f"For llm's {name}. {_BATCH_NOTE}"),
            )


def _read(path: Path) -> Any:
    return text_format.Parse(path.read_text(), model_config_pb2.ModelConfig())


def _variant(base: Any, profile: Profile) -> Any:
    config = model_config_pb2.ModelConfig()
    config.CopyFrom(base)
    if profile.batched:
        config.ClearField("max_batch_size")
        text_format.Merge(profile.batched, config)
    for name, value in profile.parameters.items():
        config.parameters[name].string_value = value
    return config


def _text(config: Any, about: str) -> str:
    comment = "\n".join(f"# {line}" for line in about.splitlines())
    body = text_format.MessageToString(config, use_short_repeated_primitives=True)
    return f"{comment}\n#\n# Made by `python -m scripts.model_configs`; change that or config.pbtxt.\n{body}"


def main() -> None:
    """Write all files."""
    for path, text in configs():
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main()
