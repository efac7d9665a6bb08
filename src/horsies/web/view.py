"""What pages and actions get, and how templates are rendered."""

from __future__ import annotations

import gzip
import json
import mimetypes
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, partial
from hashlib import sha256
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, Literal, TypeAlias, cast
from urllib.parse import unquote

from jinja2 import Environment, PackageLoader, StrictUndefined
from jinja2.runtime import Context
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from horsies.ops.api import Ops
from horsies.web.filters import make_url, quote_path
from horsies.web.security import Role, User
from horsies.web.tags import Tags

Payloads: TypeAlias = Literal["show", "mask", "hide"]
_LOCAL_PATH: Final = re.compile(r"/(?!/)[!-\[\]-~]{0,4000}")  # no backslash, which browsers take for a slash
_UPWARDS: Final = re.compile(
    r"/(?:\.|%2e){1,2}(?:[/?#]|$)", re.IGNORECASE
)  # a part of a path that leads out of our prefix
MASKED: Final = "•••"
_MIN_GZIP: Final = 1_000  # bytes


@dataclass(frozen=True, slots=True)
class Flash:
    """What an action did, shown once on the next page."""

    kind: Literal["success", "error", "info"]
    text: str
    to: str | None = None
    """Where to go instead of back, as a path below the prefix."""

    def to_text(self) -> str:
        return f"{self.kind} {self.text}"

    @classmethod
    def from_text(cls, text: str | None) -> Flash | None:
        kind, _, message = (text or "").partition(" ")
        match kind:
            case "success" | "error" | "info":
                return cls(kind, message)
            case _:
                return None


@dataclass(frozen=True)
class View:
    """One request of a user."""

    request: Request
    ops: Ops
    """Acting as the user."""
    user: User
    csrf_token: str
    renderer: Renderer
    flash: Flash | None = None
    can_log_out: bool = False

    @property
    def is_operator(self) -> bool:
        return self.user.role is Role.OPERATOR

    @property
    def query(self) -> QueryParams:
        """The parameters of the URL."""
        return self.request.query_params

    @property
    def path_params(self) -> Mapping[str, str]:
        """The parts of the path, by their names in the route."""
        return self.request.path_params

    @property
    def name(self) -> str:
        """The part `{name}` of the path, from a link such as `url("/queues/" ~ name|segment)`."""
        return unquote(self.path_params["name"])

    @property
    def path(self) -> str:
        """The path of this page below the prefix, with its query: what the field `back` of a form takes."""
        # Not `request.url`: it takes a decoded question mark in a name for the beginning of the query.
        own = quote_path(self.request.scope["path"].removeprefix(self.prefix) or "/")
        query = self.request.scope["query_string"].decode("latin-1")
        return f"{own}?{query}" if query else own

    @property
    def prefix(self) -> str:
        return self.request.scope.get("root_path", "").rstrip("/")

    def url(self, path: str, /, **query: object) -> str:
        """Return the link to a page of ours. Parameters that are None or empty are left out; those of a sequence are repeated."""
        return make_url(self.prefix, path, **query)

    def local_url(self, path: str | None) -> str:
        """Return the link to a path that a form has named, such as its field `back`. One that could lead to another site becomes that of the first page."""
        is_local = path is not None and _LOCAL_PATH.fullmatch(path) and not _UPWARDS.search(path)
        return f"{self.prefix}{path if is_local else '/'}"

    def render(self, template: str, /, *, status: int = 200, **data: object) -> Response:
        """Render a template with this view and these values."""
        return HTMLResponse(self.renderer.render(template, self.prefix, view=self, **data), status)


@dataclass(frozen=True, slots=True)
class StaticFile:
    content: bytes
    compressed: bytes | None
    media_type: str


class _Context(Context):
    """Calls functions as they are. What Jinja finds out first, whether one wants the context as an argument, takes longer than most of our calls."""

    def call(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        kwargs.pop("_loop_vars", None)
        kwargs.pop("_block_vars", None)
        return function(*args, **kwargs)


class Renderer:
    """The templates and static files of one dashboard."""

    def __init__(
        self,
        app_name: str,
        payloads: Payloads = "show",
        filters: Mapping[str, Callable[..., Any]] | None = None,
        trace_url: str | None = None,
    ) -> None:
        self.payloads: Payloads = payloads
        self._environment = Environment(
            loader=PackageLoader("horsies.web", "templates"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        self._environment.context_class = _Context
        self._environment.filters.update(filters or {})
        self._globals: dict[str, object] = {
            "app_name": app_name,
            "payload": self.payload,
            "now": _now,
            "trace_url": trace_url,
        }

    def render(self, template: str, prefix: str, /, **data: object) -> str:
        static = partial(self.static_url, prefix)
        own = {**self._globals, "url": partial(make_url, prefix), "static": static, "m": Tags(prefix)}
        text = self._environment.get_template(template).render(**own, **data)
        # JSON can have halves of surrogate pairs, which UTF-8 cannot.
        return text.encode(errors="backslashreplace").decode()

    def payload(self, text: str | None, is_sensitive: bool = False) -> str | None:  # noqa: FBT001, FBT002 - templates call it
        """Return what may be shown of JSON: all of it, its shape with masked values, or None."""
        if text is None or is_sensitive or self.payloads == "hide":
            return None
        if self.payloads == "show":
            return text
        try:
            return json.dumps(_mask(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):  # cut off, or not JSON
            return MASKED

    @cached_property
    def static_files(self) -> Mapping[str, StaticFile]:
        """All static files, read once. A path that is not among them does not exist, so none can lead out of the folder."""
        return dict(_read_folder(files("horsies.web") / "static", ""))

    @cached_property
    def static_version(self) -> str:
        """Changes with any of the static files, so that each URL may be cached without a limit."""
        digest = sha256()
        for name, file in sorted(self.static_files.items()):
            digest.update(f"{name}\0{len(file.content)}\0".encode() + file.content)
        return digest.hexdigest()[:12]

    def static_url(self, prefix: str, name: str) -> str:
        if name not in self.static_files:
            raise LookupError(f"there is no static file {name}")
        return f"{prefix}/static/{self.static_version}/{name}"


def _now() -> datetime:
    return datetime.now(UTC)


def _mask(value: Any) -> object:
    match value:
        case dict():
            return {name: _mask(item) for name, item in cast("dict[str, Any]", value).items()}
        case list():
            return [_mask(item) for item in cast("list[Any]", value)]
        case None:
            return None
        case _:
            return MASKED


def _read_folder(folder: Traversable, prefix: str) -> list[tuple[str, StaticFile]]:
    found: list[tuple[str, StaticFile]] = []
    for entry in folder.iterdir():
        name = prefix + entry.name
        if entry.is_dir():
            found += _read_folder(entry, f"{name}/")
        elif not entry.name.startswith("."):
            content = entry.read_bytes()
            kind = mimetypes.guess_type(entry.name)[0] or "application/octet-stream"
            if kind.startswith("text/") or kind in {"application/javascript", "application/json", "image/svg+xml"}:
                compressed = gzip.compress(content, mtime=0) if len(content) >= _MIN_GZIP else None
                found.append((name, StaticFile(content, compressed, f"{kind}; charset=utf-8")))
            else:
                found.append((name, StaticFile(content, None, kind)))
    return found


@dataclass(frozen=True, slots=True)
class Page:
    """A page: its path below the prefix, and what answers a GET."""

    path: str
    show: Callable[[View], Awaitable[Response]]
    shares_reads: bool = False
    """It may show statistics and findings that were read for another page a moment ago (`SharedReads`)."""
