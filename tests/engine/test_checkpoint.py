"""Models of the hub: what is downloaded, and what is served while the hub is away."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from inflight.model.loading import checkpoint
from inflight.model.loading.checkpoint import Checkpoint
from tests.hub_server import Hub, hub

MODEL = "someone/tiny"
OLD, NEW = "a" * 40, "b" * 40
SHARDS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
INDEX = "model.safetensors.index.json"
# In a process of its own, because the hub's library reads its address and its cache's folder when it is imported.
FETCH = """
import logging, sys
from inflight.model.loading.checkpoint import Checkpoint
logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s", stream=sys.stderr)
checkpoint = Checkpoint.of(sys.argv[1], sys.argv[2])
checkpoint.fetch_weights()
print(checkpoint.folder)
"""


@dataclass
class Fetched:
    """What a process that fetches a model has left."""

    files: dict[str, str]
    log: str


Fetch = Callable[..., Fetched]


@pytest.fixture
def commits(tmp_path: Path) -> dict[str, Path]:
    """Two commits of a model with two shards, and other files that repositories have."""
    for commit in (OLD, NEW):
        folder = tmp_path / commit
        (folder / "onnx").mkdir(parents=True)
        index = {"weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}
        (folder / INDEX).write_text(json.dumps(index))
        for name in ["config.json", "tokenizer.json", "chat_template.jinja", "modeling_tiny.py", *SHARDS]:
            (folder / name).write_text(f"{name} of {commit}")
        for name in ["consolidated.safetensors", "pytorch_model.bin", "onnx/model.onnx", "README.md"]:
            (folder / name).write_text("not needed")
    return {OLD: tmp_path / OLD, NEW: tmp_path / NEW}


@pytest.fixture
def fetch(tmp_path: Path) -> Fetch:
    def run(url: str, revision: str = "main", model: str = MODEL, offline: bool = False) -> Fetched:
        environment = {
            **os.environ,
            "HF_ENDPOINT": url,
            "HF_HOME": str(tmp_path / "home"),
            "HF_HUB_OFFLINE": str(int(offline)),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        command = [sys.executable, "-c", FETCH, model, revision]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
        if done.returncode != 0:
            return Fetched({}, done.stderr)
        folder = Path(done.stdout.strip())
        return Fetched({path.name: path.read_text() for path in folder.iterdir()}, done.stderr)

    return run


def needed(served: Hub, commit: str) -> dict[str, str]:
    names = ["config.json", "tokenizer.json", "chat_template.jinja", "modeling_tiny.py", *SHARDS]
    names.append("model.safetensors.index.json")
    return {name: (served.commits[commit] / name).read_text() for name in names}


def test_only_what_serving_needs_is_downloaded_once(commits: dict[str, Path], fetch: Fetch) -> None:
    with hub(MODEL, commits, main=OLD) as served:
        fetched = fetch(served.url)
        assert fetched.files == needed(served, OLD)
        assert f"INFO model {MODEL} is at commit {OLD}" in fetched.log
        assert served.downloads() == sorted(needed(served, OLD))

        served.requests.clear()
        assert fetch(served.url).files == needed(served, OLD)
        assert not served.downloads()

        served.main = NEW
        assert fetch(served.url).files == needed(served, NEW)
        assert fetch(served.url, revision=OLD).files == needed(served, OLD)


@pytest.mark.parametrize("how", ["down", "silent", "offline"])
def test_the_cache_serves_while_the_hub_is_away(commits: dict[str, Path], fetch: Fetch, how: str) -> None:
    with hub(MODEL, commits, main=NEW) as served:
        before = fetch(served.url).files
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}" if how == "silent" else served.url
        for revision in ("main", NEW):
            fetched = fetch(url, revision, offline=how == "offline")
            assert fetched.files == before, fetched.log
            assert fetched.log.count("the hub cannot be used") == (how != "offline")


def test_an_incomplete_copy_is_not_served(commits: dict[str, Path], fetch: Fetch, tmp_path: Path) -> None:
    with hub(MODEL, commits, main=NEW) as served:
        fetch(served.url)
    (shard,) = tmp_path.glob(f"home/hub/*/snapshots/{NEW}/{SHARDS[1]}")
    shard.unlink()
    log = fetch(served.url).log
    assert f"1 file(s) are missing ({SHARDS[1]})" in log
    with hub(MODEL, commits, main=NEW) as served:
        assert fetch(served.url).files == needed(served, NEW)


def test_errors_name_what_is_wrong(commits: dict[str, Path], fetch: Fetch) -> None:
    with hub(MODEL, commits, main=NEW) as served:
        assert "model is 'someone/tiny'; its config cannot be read: 404" in fetch(served.url, revision="v2").log
    assert "model is 'some one'; its config cannot be read: Repo id" in fetch(served.url, model="some one").log
    never_seen = fetch(served.url, model="someone/else")
    nowhere = "the cache has no copy of it, and the hub cannot be used: [Errno 111] Connection refused"
    assert f"model is 'someone/else'; its config cannot be read: {nowhere}" in never_seen.log


def test_a_user_without_a_home_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkpoint, "HF_HUB_CACHE", "~/.cache/huggingface/hub")
    with pytest.raises(ValueError, match=f"model is '{MODEL}'; .*: this user has no home folder .* set HF_HOME"):
        Checkpoint.of(MODEL, "main")


def test_files_that_may_not_be_read_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests may run as root, who may read everything."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(b"")
    (tmp_path / "notes.md").write_text("")
    assert Checkpoint.of(str(tmp_path), "main") == Checkpoint(tmp_path)
    monkeypatch.setattr(os, "access", lambda path, _: path.suffix == ".json")
    with pytest.raises(ValueError, match=f"the user with the id {os.geteuid()} may not read .*/model.safetensors"):
        Checkpoint.of(str(tmp_path), "main")


def test_a_file_is_not_taken_for_a_folder_without_a_config(tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF")
    with pytest.raises(ValueError, match=r"model\.gguf', which is a file; it must be a folder with config\.json"):
        Checkpoint.of(str(file), "main")


DAMAGED: dict[str, tuple[str, bytes, str]] = {
    "an empty file": (
        SHARDS[1],
        b"",
        f"{SHARDS[1]} is damaged or incomplete, so download it again: .*header too small",
    ),
    "a file of zeros": (SHARDS[0], bytes(64), f"{SHARDS[0]} is damaged or incomplete, so download it again: "),
    "a pointer": (SHARDS[1], b"version https://git-lfs.github.com/spec/v1\n", f"{SHARDS[1]} is a pointer of Git LFS"),
    "an index that is no JSON": (INDEX, b"{oops", f"{INDEX} is damaged, so download it again: it is not JSON"),
    "an index of bytes": (INDEX, b"\xff\xfe", f"{INDEX} is damaged, so download it again: it is not JSON"),
    "an index that is a list": (INDEX, b"[]", f"{INDEX} is damaged, so download it again: its weight_map must name"),
    "an index without a map": (INDEX, b'{"metadata": {}}', f"{INDEX} is damaged, .*: its weight_map must name"),
    "an index with numbers": (INDEX, b'{"weight_map": {"a": 1}}', f"{INDEX} is damaged, .*: its weight_map must name"),
    "an index of nothing": (INDEX, b'{"weight_map": {}}', f"{INDEX} is damaged, .*: its weight_map must name"),
    "a deep index": (
        INDEX,
        b"[" * 100_000,
        f"{INDEX} is damaged, .*: it is not JSON: maximum recursion depth exceeded",
    ),
    "an index of a parent": (INDEX, b'{"weight_map": {"a": "../b"}}', f"{INDEX} has the file '../b' in its weight_map"),
    "an index of the root": (INDEX, b'{"weight_map": {"a": "/b"}}', f"{INDEX} has the file '/b' in its weight_map"),
    "an index of the folder": (INDEX, b'{"weight_map": {"a": ""}}', f"{INDEX} has the file '' in its weight_map"),
    "an index without metadata": (
        INDEX,
        json.dumps({"weight_map": {"a": SHARDS[0]}}).encode(),
        f"{INDEX} has no metadata, without which transformers does not read it",
    ),
}


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    """A folder with two shards of weights."""
    for name, tensor in zip(SHARDS, "ab", strict=True):
        save_file({tensor: torch.ones(4)}, tmp_path / name)
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": {"a": SHARDS[0], "b": SHARDS[1]}}))
    return tmp_path


def test_whole_weights_pass(sharded: Path) -> None:
    Checkpoint(sharded).check_weights()


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED.values(), ids=list(DAMAGED))
def test_the_damaged_file_of_weights_is_named(sharded: Path, name: str, content: bytes, message: str) -> None:
    (sharded / name).write_bytes(content)
    with pytest.raises(ValueError, match=f"model is '{sharded}'; its weights cannot be loaded: {sharded}/{message}"):
        Checkpoint(sharded).check_weights()


def test_a_truncated_shard_is_named(sharded: Path) -> None:
    file = sharded / SHARDS[1]
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(ValueError, match=f"{SHARDS[1]} is damaged or incomplete, .*not fully covered"):
        Checkpoint(sharded).check_weights()


def test_a_folder_in_place_of_a_shard_is_named(sharded: Path) -> None:
    (sharded / SHARDS[1]).unlink()
    (sharded / SHARDS[1]).mkdir()
    with pytest.raises(ValueError, match=f"its weights cannot be loaded: {sharded / SHARDS[1]} is not a file"):
        Checkpoint(sharded).check_weights()


def test_a_file_that_is_not_behind_its_name_is_named(tmp_path: Path) -> None:
    """Else it counts as one that the model does not have. Then another one, or a default, takes its place."""
    (tmp_path / "config.json").write_text("{}")
    file = tmp_path / "generation_config.json"
    file.symlink_to("nowhere")
    with pytest.raises(ValueError, match=f"its files cannot be read: {file} is a link to a file that is not there"):
        Checkpoint.of(str(tmp_path), "main")
    file.unlink()
    file.mkdir()
    with pytest.raises(ValueError, match=f"its files cannot be read: {file} is not a file"):
        Checkpoint.of(str(tmp_path), "main")


def test_an_index_beside_a_single_file_is_not_read(sharded: Path) -> None:
    """transformers does not read it either."""
    save_file({"a": torch.ones(4)}, sharded / "model.safetensors")
    (sharded / INDEX).write_text("{oops")
    assert Checkpoint(sharded).weight_files == [sharded / "model.safetensors"]
