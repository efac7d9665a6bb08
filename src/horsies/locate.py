"""From `package.module:attr` or `path/file.py:attr` to the app, with its task modules imported."""

import fnmatch
import glob
import importlib
import importlib.util
import os
import pkgutil
import sys
import sysconfig
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from horsies.app import Horsies
from horsies.model.errors import HorsiesError, LocateError
from horsies.tasks.import_guard import suppress_sends

# --------
# From `path/file.py` to the module, and whose file it is.

_NOT_LISTED = ("__init__.py", "__main__.py")


def import_file(place: str) -> ModuleType:
    path = Path(place)
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


def matching_files(pattern: str) -> list[str]:
    """The `.py` files that a pattern matches, sorted. Without `__init__.py` and `__main__.py`: the first is imported with its package, the second is a program."""
    found = glob.glob(pattern, recursive=True)  # noqa: PTH207 - absolute patterns, too
    return sorted(file for file in found if file.endswith(".py") and Path(file).name not in _NOT_LISTED)


def matching_modules(package: ModuleType, parts: Sequence[str]) -> list[str]:
    """The modules below a package whose names match, part by part, sorted. `**` matches any number of parts."""
    return sorted(set(_matching(package.__name__, [str(path) for path in getattr(package, "__path__", ())], parts)))


def _matching(name: str, folders: Sequence[str], parts: Sequence[str]) -> Iterator[str]:
    part, *rest = parts
    if part == "**" and rest:
        yield from _matching(name, folders, rest)
    wanted = "*" if part == "**" else part
    if not rest:
        for module in pkgutil.iter_modules(folders):
            if module.name != "__main__" and fnmatch.fnmatchcase(module.name, wanted):
                yield f"{name}.{module.name}"
        if part != "**":
            return
    for inner, inside in _folders_below(folders, follows_links=part != "**"):  # links may lead back
        if fnmatch.fnmatchcase(inner, wanted):
            yield from _matching(f"{name}.{inner}", inside, parts if part == "**" else rest)


def _folders_below(folders: Sequence[str], *, follows_links: bool) -> Iterator[tuple[str, list[str]]]:
    """Names of packages and where they are. Folders count without an `__init__.py`, too: a namespace package has none."""
    found: dict[str, list[str]] = {}
    for place in folders:
        for folder in Path(place).iterdir() if Path(place).is_dir() else ():
            is_package = folder.is_dir() and folder.name.isidentifier() and folder.name != "__pycache__"
            if is_package and (follows_links or not folder.is_symlink()):
                found.setdefault(folder.name, []).append(str(folder))
    yield from found.items()


def is_own(file: str) -> bool:
    """The user's own code: no library's, and not ours."""
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not is_ours(file) and not any(Path(file).is_relative_to(place) for place in libraries)


def is_ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parent)


def _raise(error: LocateError) -> None:
    raise error


def load_app(
    locator: str,
    *,
    imports: Iterable[str] = (),
    before: Callable[[str], None] = lambda _module: None,
    failed: Callable[[LocateError], None] = _raise,
) -> Horsies:
    """The app with all its tasks registered. The current folder is importable; sends are suppressed meanwhile.

    `imports` are modules beside those that the app names itself; `before` hears of each module before it is imported, and `failed` of those
    of its tasks that cannot be.
    """
    before(locator.rpartition(":")[0])
    app = find_app(locator)
    import_tasks(app, locator, imports=imports, before=before, failed=failed)
    return app


def import_tasks(
    app: Horsies,
    name: str,
    *,
    imports: Iterable[str] = (),
    before: Callable[[str], None] = lambda _module: None,
    failed: Callable[[LocateError], None] = _raise,
) -> list[str]:
    """Import the task modules of an app, and `imports`; those that patterns stand for, too. Returns what was imported. `name` is the app's, for errors."""
    imported: list[str] = []
    with suppress_sends():
        for place in (*app.task_modules, *imports):
            try:
                modules = expand(place, f"task modules {place!r} of {name}")
            except LocateError as error:
                failed(error)
                continue
            for module in modules:
                if module in imported:
                    continue
                imported.append(module)
                before(module)
                try:
                    _import(module, f"task module {module!r} of {name}")
                except LocateError as error:
                    failed(error)
    return imported


def expand(place: str, what: str) -> list[str]:
    """The modules or files that a pattern matches, sorted; `[place]` if it is not a pattern. Raises LocateError if nothing matches."""
    if not any(wildcard in place for wildcard in "*?["):
        return [place]

    if place.endswith(".py") or os.sep in place:
        found = matching_files(place)
        hint = f"write the pattern as seen from {os.getcwd()!r}"  # noqa: PTH109 - as above
    else:
        fixed, _, _ = place.partition("*")[0].partition("?")[0].partition("[")[0].rpartition(".")
        if not fixed:
            raise LocateError(f"{what}: a pattern begins with the name of a package, as in 'myapp.*.tasks'")
        package = _import(fixed, f"the package {fixed!r} of {what}")
        found = matching_modules(package, place.split(".")[fixed.count(".") + 1 :])
        hint = "each * stands for one part of a dotted name, ** for any number of them"
    if not found:
        raise LocateError(f"{what} match nothing; {hint}")
    return found


def find_app(locator: str) -> Horsies:
    """The app, without its task modules. The current folder is importable; sends are suppressed while its module is imported."""
    here = os.getcwd()  # noqa: PTH109 - every child loads this module, and pathlib is dear
    if here not in sys.path:
        sys.path.insert(0, here)
    place, attribute = parted(locator)
    with suppress_sends():
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
    # By the module's name: `shop/tasks.py:app` and `shop.tasks:app` are the same app.
    found.locator = f"{module.__name__}:{attribute}"
    return found


def parted(locator: str) -> tuple[str, str]:
    """The module or file, and the attribute."""
    place, colon, attribute = locator.rpartition(":")
    if not colon or not place or not attribute.isidentifier():
        raise LocateError(f"{locator!r} does not name an app; write package.module:attribute or path/file.py:attribute")
    return place, attribute


def _import(place: str, what: str) -> ModuleType:
    try:
        return _import_file(place) if place.endswith(".py") else importlib.import_module(place)
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


def _import_file(place: str) -> ModuleType:

    return import_file(place)


def _where(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}{_line_of(error)}"


def _line_of(error: BaseException) -> str:
    """The line of the user's own code that raised it: not where a library that it called gave up."""
    import traceback  # noqa: PLC0415 - every child loads this module, and hardly one of them has an error to report

    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not is_ours(frame.filename)
    ]
    own = [frame for frame in frames if is_own(frame.filename)]
    last = (own or frames)[-1:]
    return "".join(f" ({frame.filename}:{frame.lineno})" for frame in last)
