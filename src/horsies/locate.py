"""From `package.module:attr` or `path/file.py:attr` to the app, with its task modules imported."""

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType

from horsies.app import Horsies
from horsies.model.errors import HorsiesError, LocateError
from horsies.tasks.suppress import suppress_sends

_OURS = Path(__file__).parent


def load_app(
    locator: str, *, imports: Iterable[str] = (), before: Callable[[str], None] = lambda _module: None
) -> Horsies:
    """The app with all its tasks registered. The current folder is importable; sends are suppressed meanwhile.

    `imports` are modules beside those that the app names itself; `before` hears of each module before it is imported.
    """
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with suppress_sends():
        before(locator.rpartition(":")[0])
        app = find_app(locator)
        for module in (*app.task_modules, *imports):
            before(module)
            _import(module, f"task module {module!r} of {locator}")
    return app


def find_app(locator: str) -> Horsies:
    place, colon, attribute = locator.rpartition(":")
    if not colon or not place or not attribute.isidentifier():
        raise LocateError(f"{locator!r} does not name an app; write package.module:attribute or path/file.py:attribute")
    module = _import(place, f"{place!r}")
    try:
        found = getattr(module, attribute)
    except AttributeError:
        apps = [name for name, value in vars(module).items() if isinstance(value, Horsies)]
        hint = f"it has {', '.join(apps)}" if apps else "it has no Horsies app at its top level"
        raise LocateError(f"{place!r} has no attribute {attribute!r}; {hint}") from None
    if not isinstance(found, Horsies):
        raise LocateError(
            f"{locator!r} is a {type(found).__name__}, not a Horsies app; name the variable that holds Horsies(...)"
        )
    return found


def _import(place: str, what: str) -> ModuleType:
    try:
        return _import_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    except ModuleNotFoundError as error:
        if error.name and (place == error.name or place.startswith(f"{error.name}.")):
            raise LocateError(
                f"cannot import {what}: there is no module {error.name!r} here; "
                "run from the folder that contains it, or write the path of a .py file"
            ) from None
        raise LocateError(f"cannot import {what}: {_where(error)}") from error
    except HorsiesError as error:
        raise LocateError(f"cannot import {what}{_line_of(error)}: {error}") from error
    except (Exception, SystemExit) as error:  # user code runs at import
        raise LocateError(f"cannot import {what}: {_where(error)}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise LocateError(f"there is no file {str(path)!r}; write its path as seen from {str(Path.cwd())!r}")
    path = path.resolve()
    name = _dotted_name(path)
    return importlib.import_module(name) if name else _import_lone_file(path)


def _dotted_name(path: Path) -> str | None:
    """A file that can be imported by a dotted name is, or it would exist twice once somebody imports it."""
    for folder in sys.path:
        root = Path(folder).resolve()
        if folder and path.is_relative_to(root):
            parts = path.relative_to(root).with_suffix("").parts
            name = ".".join(parts)
            if all(part.isidentifier() for part in parts) and _origin(name) == path:
                return name
    return None


def _origin(name: str) -> Path | None:
    """The file that an import of this name leads to: another package of the same name may come first."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return None  # its parent is not there, or is no package
        raise
    except ValueError:
        return Path()  # no file: it was not imported in the usual way, as `__main__`
    return Path(spec.origin or "").resolve() if spec else None


def _import_lone_file(path: Path) -> ModuleType:
    name = path.stem
    if _origin(name) not in (None, path):  # `queue.py` must not take the place of Python's own
        from hashlib import sha256  # noqa: PLC0415 - brings OpenSSL

        name = f"{name}_{sha256(bytes(path)).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LocateError(f"{str(path)!r} is not a Python file; write the path of one that ends in .py")
    sys.path.insert(0, str(path.parent))  # as `python path/file.py` does
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _where(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}{_line_of(error)}"


def _line_of(error: BaseException) -> str:
    """The line of the user's own code that raised it: not where a library that it called gave up."""
    import sysconfig  # noqa: PLC0415 - every child loads this module, and hardly one of them has an error to report
    import traceback  # noqa: PLC0415 - the same

    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not Path(frame.filename).is_relative_to(_OURS)
    ]
    libraries = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    own = [frame for frame in frames if not any(Path(frame.filename).is_relative_to(place) for place in libraries)]
    last = (own or frames)[-1:]
    return "".join(f" ({frame.filename}:{frame.lineno})" for frame in last)
