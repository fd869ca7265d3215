"""Writes docs/reference/ from the code: `python -m scripts.reference_pages`."""

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from pathlib import Path

from inflight import EngineConfig, RequestOptions, SamplingParams, StructuredOutputs
from inflight.metric_families.families import FAMILIES
from inflight.metric_families.family import COMMON_LABELS, Family
from inflight.metrics import FILLED_BOUNDS
from inflight.scheduler.scheduler_config import SchedulerConfig
from serving.fields import GROUPS, SAMPLING_PARAMETERS, Field
from serving.outputs import OUTPUTS
from serving.server_config import ServerConfig

FOLDER = Path(__file__).resolve().parents[1] / "docs/reference"

_NOTE = "\n<!-- Written by `python -m scripts.reference_pages`. Change the code that it names, not this page. -->\n"
_REQUESTS = """# Request fields
{note}
All fields of a request; [Requests](../requests.md) explains them. A client can give a field as an input tensor, inside
the JSON object `sampling_parameters`, or as a request parameter. If a field is given in several ways, the first of
these counts. In `sampling_parameters`, and in parameters that are no tensors, numbers may be written as text. Every
field is optional unless its text says otherwise. "The model's" value is the one in the model's
`generation_config.json`.
"""
_STRUCTURED_OUTPUTS = """
## Keys of `structured_outputs`

Exactly one of the first six is given.

| key | meaning |
|---|---|
"""
_OUTPUTS = """
## Outputs

`text_output` is in every response. The other outputs are sent only where the request asks for them. Every output has
one element (or row) per sample, except `num_input_tokens` and `usage`.

| output | type | meaning |
|---|---|---|
"""
_PAGES_OF_CLASSES = {
    "KVEventsConfig": ("KV events", "configuration.md#kv-events"),
    "KVTransferConfig": ("Disaggregated prefill", "prefill-decode.md"),
    "RequestClass": ("Classes of requests", "scheduling.md#classes-of-requests"),
    "SpeculativeConfig": ("Speculative decoding", "speculative-decoding.md"),
}
_CONFIGURATION = """# Settings
{note}
All settings; [Configuration](../configuration.md) says which ones to change for which load. Each setting is one entry
of `parameters` in `config.pbtxt`:

```protobuf
parameters {{ key: "max_num_seqs" value: {{ string_value: "64" }} }}
```

An unknown parameter, or a value that does not fit, stops the load with a message. The defaults are those of the code;
the `config.pbtxt` that comes with the project sets some of them otherwise.
"""
_METRICS = """# Metrics
{note}
The model adds these metrics to Triton's own `/metrics`; [Operations](../operations.md#metrics) says which ones to look
at. It updates them twice a second, and those that routers read ten times a second: {live}.
Each has the labels {labels}. Metrics that vLLM has too have vLLM's names after the prefix.
Counters start at 0 when the model is loaded. When a model is unloaded, its metrics disappear.

| metric | kind | label | meaning |
|---|---|---|---|
"""
_BUCKETS = """
Triton reports the series `_bucket`, `_sum` and `_count` of {filled} as counters, because the engine fills these
histograms itself: there are too many steps and tokens to pass each one to Triton. `histogram_quantile` and everything
else in PromQL treats them like any other histogram.

## Buckets

| histogram | upper bounds |
|---|---|
"""


def pages() -> dict[str, str]:
    """The text of each page, by file name."""
    return {"requests.md": _requests(), "configuration.md": _configuration(), "metrics.md": _metrics()}


def attribute_docs(owner: type) -> dict[str, str]:
    """The docstrings of a dataclass's fields, each on one line."""
    (body,) = ast.parse(inspect.getsource(owner)).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for statement, following in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign) and isinstance(following, ast.Expr):
            assert isinstance(statement.target, ast.Name)
            found[statement.target.id] = " ".join(ast.literal_eval(following.value).split())
    return found


def _requests() -> str:
    known = attribute_docs(SamplingParams) | attribute_docs(RequestOptions)
    tables = "".join(f"\n## {heading}\n\n{_fields(group, known)}" for heading, group in GROUPS.items())
    outputs = "".join(
        f"| `{output.name}` | {_tensor(output.data_type, output.dims)} | {output.about} |\n" for output in OUTPUTS
    )
    docs = attribute_docs(StructuredOutputs)
    keys = "".join(
        f"| `{key.name}` | {docs[key.name]} |\n" for key in dataclasses.fields(StructuredOutputs) if key.init
    )
    json_field = "\n## JSON\n\n" + _fields((SAMPLING_PARAMETERS,), known)
    return _REQUESTS.format(note=_NOTE) + tables + _STRUCTURED_OUTPUTS + keys + json_field + _OUTPUTS + outputs


def _fields(group: tuple[Field, ...], known: dict[str, str]) -> str:
    rows = "".join(_field(field, field.about or known[field.name]) for field in group)
    return "| field | other names | value | input tensor | meaning |\n|---|---|---|---|---|\n" + rows


def _field(field: Field, about: str) -> str:
    others = ", ".join(f"`{name}`" for name in field.names[1:])
    inputs = [tensor["name"] for tensor in field.inputs()]
    tensor = _tensor(field.kind.data_type or "", field.kind.dims) if inputs else "none"
    if inputs and inputs != list(field.names):
        tensor += f" ({', '.join(f'`{name}`' for name in inputs)} only)"
    return f"| `{field.name}` | {others} | {field.kind.about} | {tensor} | {about} |\n"


def _tensor(data_type: str, dims: tuple[int, ...]) -> str:
    return f"{data_type.removeprefix('TYPE_')} {list(dims)}"


def _configuration() -> str:
    sections = {"Engine": EngineConfig, "Scheduler": SchedulerConfig, "Server": ServerConfig}
    tables = "".join(f"\n## {heading}\n\n{_settings(owner)}" for heading, owner in sections.items())
    return _CONFIGURATION.format(note=_NOTE) + tables


def _settings(owner: type) -> str:
    docs = {name: _linked(about) for name, about in attribute_docs(owner).items()}
    rows = "".join(f"| `{name}` | {default} | {docs[name]} |\n" for name, default in _defaults(owner) if name in docs)
    return "| parameter | default | meaning |\n|---|---|---|\n" + rows


def _linked(about: str) -> str:
    """With links to pages in place of the classes that the docstrings name."""
    for name, (title, page) in _PAGES_OF_CLASSES.items():
        about = about.replace(f"see `{name}`", f"see [{title}](../{page})")
    return about


def _defaults(owner: type) -> Iterator[tuple[str, str]]:
    for field in dataclasses.fields(owner):
        if field.default is dataclasses.MISSING:
            yield field.name, "required" if field.default_factory is dataclasses.MISSING else "none"
        elif field.default is None:
            yield field.name, "none"
        else:
            text = str(field.default).lower() if isinstance(field.default, bool) else str(field.default)
            yield field.name, f"`{text}`" if text else "none"


def _metrics() -> str:
    rows = "".join(_family(family) for family in FAMILIES)
    buckets = "".join(
        f"| `{family.name}` | {', '.join(f'{bound:g}' for bound in family.buckets)} |\n"
        for family in FAMILIES
        if family.buckets
    )
    filled = ", ".join(f"`{family.name}`" for family in FAMILIES if family.observes in FILLED_BOUNDS)
    labels = ", ".join(f"`{label}`" for label in COMMON_LABELS)
    live = ", ".join(f"`{family.name}`" for family in FAMILIES if family.is_live)
    return _METRICS.format(note=_NOTE, labels=labels, live=live) + rows + _BUCKETS.format(filled=filled) + buckets


def _family(family: Family) -> str:
    label = f"`{family.label}`" if family.label else ""
    return f"| `{family.name}` | {family.kind} | {label} | {family.help} |\n"


def main() -> None:
    """Write all pages."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, text in pages().items():
        (FOLDER / name).write_text(text)


if __name__ == "__main__":
    main()
