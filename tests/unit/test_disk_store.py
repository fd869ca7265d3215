"""Blocks in files: bounded in size, whole or not there, and found by every store on the folder."""

import os
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from inflight.kv_cache.disk_folder import hash_key, open_folder
from inflight.kv_cache.disk_store import DiskStore
from tests.unit.disks import full_disk

BYTES = 20
FILE_BYTES = BYTES + 4
NAMES = [bytes([number] * 16) for number in range(6)]


def content(name: bytes) -> np.ndarray:
    return np.full(BYTES, name[0] + 1, dtype=np.uint8)


def found(store: DiskStore, *names: bytes) -> int:
    """How many blocks of a chain can be read; they are right."""
    data = np.zeros((len(names), BYTES), dtype=np.uint8)
    count = store.read(names, data)
    for name, row in zip(names[:count], data, strict=False):
        assert row.tolist() == content(name).tolist()
    return count


class Stores(RuleBasedStateMachine):
    """Two stores with room for a few blocks, on one folder, in which files are damaged."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.rooms = [3, 5]
        self.stores = [self.open(0), self.open(1)]

    def open(self, which: int) -> DiskStore:
        return DiskStore(Path(self.folder.name), "same", BYTES, self.rooms[which] * FILE_BYTES)

    def teardown(self) -> None:
        self.folder.cleanup()

    def files(self) -> list[Path]:
        return sorted(path for path in Path(self.folder.name).glob("*/*/*"))

    @rule(which=st.integers(0, 1), name=st.sampled_from(NAMES))
    def write(self, which: int, name: bytes) -> None:
        store = self.stores[which]
        store.write(name, content(name))
        assert found(store, name) == 1

    @rule(which=st.integers(0, 1), names=st.permutations(NAMES))
    def read(self, which: int, names: list[bytes]) -> None:
        store = self.stores[which]
        promised = store.count(names)
        count = found(store, *names)
        assert count <= promised
        assert count == promised or store.count(names) == count

    @rule(which=st.integers(0, 1))
    def restart(self, which: int) -> None:
        self.stores[which] = self.open(which)

    @rule(luck=st.integers(0, 100), how=st.sampled_from(["cut", "flip", "grow", "empty", "rename"]))
    def damage(self, luck: int, how: str) -> None:
        if not (files := self.files()):
            return
        path = files[luck % len(files)]
        data = bytearray(path.read_bytes())
        if how == "rename":
            os.replace(path, path.with_name(NAMES[luck % len(NAMES)].hex()))
            return
        if how == "flip" and data:
            data[luck % len(data)] ^= 1
        path.write_bytes({"cut": data[:-1], "grow": data + b"x", "empty": b""}.get(how, data))

    @invariant()
    def it_is_bounded(self) -> None:
        for store, room in zip(self.stores, self.rooms, strict=True):
            assert store.num_bytes == sum(store._index.values()) <= room * FILE_BYTES
        assert len(self.files()) <= len(NAMES) + 1
        assert not [path for path in self.files() if "." in path.name]


TestStores = Stores.TestCase
TestStores.settings = settings(settings.get_profile("unit"), max_examples=20, stateful_step_count=20)


def test_the_least_recently_used_goes_first_also_after_a_restart(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, "a", BYTES, 3 * FILE_BYTES)
    for age, name in enumerate(NAMES[:3]):
        store.write(name, content(name))
        os.utime(tmp_path / store._path(name), (age, age))
    assert found(store, NAMES[0]) == 1
    store = DiskStore(tmp_path, "a", BYTES, 3 * FILE_BYTES)
    store.write(NAMES[3], content(NAMES[3]))
    assert [store.count([name]) for name in NAMES[:4]] == [1, 0, 1, 1]


def test_other_fingerprints_are_not_read_but_count(tmp_path: Path) -> None:
    old = DiskStore(tmp_path, "old", BYTES, 10 * FILE_BYTES)
    for name in NAMES:
        old.write(name, content(name))
    new = DiskStore(tmp_path, "new", BYTES, 4 * FILE_BYTES)
    assert (new.num_blocks, new.count(NAMES)) == (4, 0)
    new.write(NAMES[0], content(NAMES[0]))
    assert (new.num_blocks, found(new, NAMES[0])) == (4, 1)


def test_what_cannot_be_written_leaves_nothing(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, "a", BYTES, 3 * FILE_BYTES)
    (tmp_path / "a").touch()
    with pytest.raises(OSError, match="a"):
        store.write(NAMES[0], content(NAMES[0]))
    assert (store.num_blocks, store.num_bytes) == (0, 0)


def test_a_file_that_cannot_be_removed_is_a_block_that_is_not_there(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, "a", BYTES, 3 * FILE_BYTES)
    store.write(NAMES[0], content(NAMES[0]))
    path = tmp_path / store._path(NAMES[0])
    path.unlink()
    (path / "in the way").mkdir(parents=True)
    assert found(store, NAMES[0]) == 0
    assert (store.num_blocks, store.num_bytes) == (0, 0)


def test_a_chain_whose_files_another_engine_has_removed_is_forgotten_at_its_first_read(tmp_path: Path) -> None:
    store, other = (DiskStore(tmp_path, "a", BYTES, 4 * FILE_BYTES) for _ in range(2))
    for name in NAMES[:3]:
        store.write(name, content(name))
    for name in NAMES[:2]:
        other.remove(name)
    assert found(store, *NAMES[:3]) == 0
    assert [store.touch(name) for name in NAMES[:3]] == [False, False, True]
    assert (store.num_blocks, store.num_bytes) == (1, FILE_BYTES)


def test_an_abandoned_draft_that_cannot_be_removed_stays(tmp_path: Path) -> None:
    store = DiskStore(tmp_path, "a", BYTES, 3 * FILE_BYTES)
    store.write(NAMES[0], content(NAMES[0]))
    draft = (tmp_path / store._path(NAMES[0])).with_suffix(".1f")
    draft.mkdir()
    os.utime(draft, (0, 0))
    assert found(DiskStore(tmp_path, "a", BYTES, 3 * FILE_BYTES), NAMES[0]) == 1
    assert draft.is_dir()


def test_a_store_opens_while_another_one_writes(tmp_path: Path) -> None:
    busy = DiskStore(tmp_path, "a", 8, 1 << 20)
    data = np.zeros(8, dtype=np.uint8)
    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(lambda: [busy.write(number.to_bytes(16, "big"), data) for number in range(600)])
        while not writing.done():
            DiskStore(tmp_path, "a", 8, 1 << 20)
        writing.result()
    assert DiskStore(tmp_path, "a", 8, 1 << 20).num_blocks == 600


def test_a_store_without_room_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="do not suffice for a block of 20 bytes"):
        DiskStore(tmp_path, "a", BYTES, BYTES)


def test_files_and_folders_are_private(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "kv"))
    store = DiskStore(folder, "a", BYTES, 3 * FILE_BYTES)
    store.write(NAMES[0], content(NAMES[0]))
    key = hash_key(folder)
    assert (len(key), hash_key(folder)) == (32, key)
    for path in (folder, *folder.rglob("*")):
        assert path.stat().st_mode & 0o077 == 0
    assert [path.name for path in folder.iterdir() if path.is_file()] == ["key"]


def test_a_folder_that_was_deleted_is_made_again(tmp_path: Path) -> None:
    """As someone does who wants a running server to forget its prompts."""
    folder = open_folder(str(tmp_path / "kv"))
    store = DiskStore(folder, "a", BYTES, 3 * FILE_BYTES)
    store.write(NAMES[0], content(NAMES[0]))
    shutil.rmtree(folder)
    assert found(store, NAMES[0]) == 0
    store.write(NAMES[0], content(NAMES[0]))
    assert found(store, NAMES[0]) == 1
    assert open_folder(str(folder)) == folder  # Nobody else can read it.


def test_nothing_is_written_to_a_folder_in_place_of_the_deleted_one_that_others_can_change(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "kv"))
    store = DiskStore(folder, "a", BYTES, 3 * FILE_BYTES)
    folder.rmdir()
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(PermissionError, match="can be written by other users"):
        store.write(NAMES[0], content(NAMES[0]))
    assert list(folder.iterdir()) == []


def test_a_folder_that_others_can_read_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "kv"
    folder.mkdir(mode=0o755)
    with pytest.raises(ValueError, match="other users can read it"):
        open_folder(str(folder))


def test_a_full_disk_leaves_no_half_a_key(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "kv"))
    with full_disk(), pytest.raises(ValueError, match="no key can be written"):
        hash_key(folder)
    assert list(folder.iterdir()) == []
    assert len(hash_key(folder)) == 32


def test_a_folder_that_takes_no_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"kv_offloading_path: no key can be written to .*/gone: "):
        hash_key(tmp_path / "gone")


def test_a_damaged_key_is_refused(tmp_path: Path) -> None:
    folder = open_folder(str(tmp_path / "kv"))
    (folder / "key").touch(mode=0o600)
    with pytest.raises(ValueError, match="has 0 bytes, not 32"):
        hash_key(folder)
