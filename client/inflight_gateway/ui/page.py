"""GET /ui and its files. They are the same for everybody, and no key is needed."""

from pathlib import Path

from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from inflight_gateway.errors import ApiError

_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FILES = {file.name: file for file in (Path(__file__).parent / "static").iterdir() if file.suffix in _TYPES}
_HEADERS = {
    # Nothing from other hosts, and no scripts or styles within the page: names of requests come from clients.
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    # A page of an older gateway may not understand the events of this one.
    "Cache-Control": "no-cache",
}

router = APIRouter(include_in_schema=False)


@router.get("/ui")
async def show_page() -> Response:
    """The page."""
    return _response("index.html")


@router.get("/ui/")
async def name_page() -> Response:
    """The page's files have addresses relative to /ui."""
    return RedirectResponse("../ui")


@router.get("/ui/{name}")
async def read_file(name: str) -> Response:
    """Its scripts and its style."""
    if name not in _FILES:
        raise ApiError(404, "not_found", f"there is no /ui/{name}")
    return _response(name)


def _response(name: str) -> Response:
    file = _FILES[name]
    return Response(file.read_bytes(), headers=_HEADERS, media_type=_TYPES[file.suffix])
