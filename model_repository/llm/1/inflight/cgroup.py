"""Finds the Linux control groups of this process, which limit its memory and processor time in a container."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath


@dataclass(frozen=True)
class ControlGroup:
    """A folder with the limits of a group of processes, in version 1 or 2 of the kernel's interface."""

    folder: Path
    version: int

    def words(self, name: str) -> list[str]:
        """Return the words in a file of the group. Empty if there is no such file, as in the kernel's root group."""
        try:
            return (self.folder / name).read_text().split()
        except FileNotFoundError:
            return []


def control_groups(controller: str, root: Path) -> list[ControlGroup]:
    """Return the group of this process for `cpu` or `memory`, and those above it as far as they are visible.

    The limits of all of them apply. The list is empty on systems without control groups.

    Args:
        controller: the kernel's name of what is limited.
        root: the root of the file system; another folder in tests.
    """
    try:
        memberships = (root / "proc/self/cgroup").read_text().splitlines()
        mounts = (root / "proc/self/mountinfo").read_text().splitlines()
    except FileNotFoundError:
        return []
    # Each line is `number:controllers:path`. The line of version 2 names no controllers.
    paths = {names: path for _, names, path in (line.split(":", 2) for line in memberships)}
    version_1 = next((names for names in paths if controller in names.split(",")), None)
    path = paths.get(version_1 or "")
    if path is None:
        return []
    for line in mounts:
        where, _, what = line.partition(" - ")
        kind, _, options = what.split(" ", 2)
        if (kind == "cgroup" and controller in options.split(",")) if version_1 else kind == "cgroup2":
            mounted, mount_point = where.split(" ")[3:5]
            return _chain(root / mount_point.lstrip("/"), PurePosixPath(path), mounted, 1 if version_1 else 2)
    return []


def _chain(mount: Path, path: PurePosixPath, mounted: str, version: int) -> list[ControlGroup]:
    """Return the group at `path` and its parents up to `mounted`, the group whose folder is `mount`."""
    # A container may see its own group as the mounted one, but read the path that it has on the host.
    steps = path.relative_to(mounted).parts if path.is_relative_to(mounted) and ".." not in path.parts else ()
    return [ControlGroup(mount.joinpath(*steps[:depth]), version) for depth in range(len(steps), -1, -1)]
