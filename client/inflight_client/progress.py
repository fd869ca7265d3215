"""An optional progress bar."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Callable[[], object]]:
    """Show a progress bar if `shown`. Yields a function that the caller calls after each of `total` requests.

    Raises:
        ImportError: `shown` is true and tqdm is not installed.
    """
    if not shown:
        yield lambda: None
        return
    # Imported here because tqdm is an optional dependency.
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install 'inflight-client[progress]'") from error
    with tqdm(total=total, unit="request") as bar:
        yield bar.update
