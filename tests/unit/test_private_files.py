"""Code is loaded only from files that nobody else can have written."""

import os
from pathlib import Path

import pytest

from inflight.private_files import check_private, private_folder

OTHER_USER = 12345
AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")


def test_the_folder_is_made_for_this_user_alone(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "kernels")
    assert folder.stat().st_mode & 0o777 == 0o700
    assert private_folder(folder) == folder


@pytest.mark.parametrize("mode", [0o770, 0o702, 0o777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = private_folder(tmp_path / "kernels")
    folder.chmod(mode)
    with pytest.raises(PermissionError, match="kernels can be written by other users"):
        private_folder(folder)


def test_a_folder_that_others_can_replace_is_refused(tmp_path: Path) -> None:
    parent = tmp_path / "shared"
    parent.mkdir()
    parent.chmod(0o777)
    with pytest.raises(PermissionError, match=r"shared, which holds .*, can be written by all users"):
        private_folder(parent / "kernels")
    parent.chmod(0o1777)
    private_folder(parent / "kernels")


def test_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "kernels").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(PermissionError, match="kernels is a link"):
        private_folder(tmp_path / "kernels")


@AS_ROOT
def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = private_folder(tmp_path / "a" / "kernels")
    os.chown(folder, OTHER_USER, OTHER_USER)
    with pytest.raises(PermissionError, match="kernels belongs to another user"):
        private_folder(folder)
    os.chown(folder, 0, 0)
    os.chown(folder.parent, OTHER_USER, OTHER_USER)
    with pytest.raises(PermissionError, match=r"a, which holds .*, belongs to another user"):
        private_folder(folder)


@AS_ROOT
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "kernels.so"
    library.touch(mode=0o700)
    check_private(library)
    os.chown(library, OTHER_USER, OTHER_USER)
    with pytest.raises(PermissionError, match=r"kernels\.so belongs to another user"):
        check_private(library)
