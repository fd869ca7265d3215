"""A progress bar, where one is wanted."""

import contextlib
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def progress_bar(total: int, shown: bool) -> Iterator[Callable[[], object]]:
    """A function to be called after each of `total` requests.

    Raises:
        ImportError: it is to be shown and tqdm is not installed.
    """
    if not shown:
        yield lambda: None
        return
    # Only here: the client does without it unless somebody wants to see a bar.
    try:
        from tqdm import tqdm
    except ImportError as error:
        raise ImportError("progress=True needs tqdm: pip install 'inflight-client[progress]'") from error
    with tqdm(total=total, unit="request") as bar:
        yield bar.update
