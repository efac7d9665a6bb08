"""Find an app by its locator, `package.module:attribute` or `path/file.py:attribute`, and import its task modules.

Paths are strings here, because they are compared with those of `sys.path` and of modules.
"""

# ruff: noqa: PTH109, PTH113, PTH118, PTH119, PTH120, PTH122, PTH206, PTH207 - see above

import glob
import importlib
import os
import pkgutil
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from hashlib import sha256
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from types import ModuleType

from horsies.app import Horsies
from horsies.model.errors import HorsiesError, LocateError
from horsies.tasks.sender import suppress_sends


def load_app(
    locator: str, *, imports: Iterable[str] = (), before: Callable[[str], None] = lambda _module: None
) -> Horsies:
    """Return the app with all its tasks registered: see `find_app` and `import_tasks`."""
    before(locator.rpartition(":")[0])
    app = find_app(locator)
    import_tasks(app, locator, imports=imports, before=before)
    return app


def find_app(locator: str) -> Horsies:
    """Return the app without importing its task modules. The current folder is importable; sends are suppressed during the import."""
    with suppress(OSError):  # the folder was removed, as that of an old release may be
        if (here := os.getcwd()) not in sys.path:
            sys.path.insert(0, here)
    place, attribute = split_locator(locator)
    with suppress_sends():
        module = _import(place, f"{place!r}")
    try:
        app = getattr(module, attribute)
    except AttributeError:
        apps = [name for name, value in vars(module).items() if isinstance(value, Horsies)]
        hint = f"it has {', '.join(apps)}" if apps else "it has no Horsies app at its top level"
        raise LocateError(f"{place!r} has no attribute {attribute!r}; {hint}") from None
    if not isinstance(app, Horsies):
        raise LocateError(
            f"{locator!r} is a {type(app).__name__}, not a Horsies app; name the variable that holds Horsies(...)"
        )
    # With the name of the module: `shop/tasks.py:app` and `shop.tasks:app` are the same app.
    app.locator = f"{module.__name__}:{attribute}"
    return app


def split_locator(locator: str) -> tuple[str, str]:
    """Return the module or file, and the attribute."""
    place, colon, attribute = locator.rpartition(":")
    if not colon or not place or not attribute.isidentifier():
        raise LocateError(f"{locator!r} does not name an app; write package.module:attribute or path/file.py:attribute")
    return place, attribute


def _raise(error: LocateError) -> None:
    raise error


def import_tasks(
    app: Horsies,
    name: str,
    *,
    imports: Iterable[str] = (),
    before: Callable[[str], None] = lambda _module: None,
    on_error: Callable[[LocateError], None] = _raise,
) -> list[str]:
    """Import the task modules of an app, and `imports`, with patterns expanded. Return what was imported. `name` is the app's, for errors.

    Sends are suppressed during the imports. `before` is called with each module before its import, `on_error` with the error of a module
    that cannot be imported.
    """
    imported: list[str] = []
    with suppress_sends():
        for place in (*app.task_modules, *imports):
            try:
                modules = _expand_pattern(place, f"task modules {place!r} of {name}")
            except LocateError as error:
                on_error(error)
                continue
            for module in modules:
                if module in imported:
                    continue
                imported.append(module)
                before(module)
                try:
                    _import(module, f"task module {module!r} of {name}")
                except LocateError as error:
                    on_error(error)
    return imported


# -- patterns


def _expand_pattern(place: str, what: str) -> list[str]:
    """Return the modules or files that a pattern matches, sorted; `[place]` if it is not a pattern. Raise LocateError if nothing matches."""
    if not any(wildcard in place for wildcard in "*?["):
        return [place]
    if place.endswith(".py") or os.sep in place:
        # A package's `__init__.py` is imported with the package; `__main__.py` is a program.
        left_out = ("__init__.py", "__main__.py")
        files = glob.glob(place, recursive=True)
        matches = sorted(file for file in files if file.endswith(".py") and os.path.basename(file) not in left_out)
        hint = f"write the pattern as seen from {os.getcwd()!r}"
    else:
        # The whole parts of the name before the first wildcard.
        fixed, _, _ = place.partition("*")[0].partition("?")[0].partition("[")[0].rpartition(".")
        if not fixed:
            raise LocateError(f"{what}: a pattern begins with the name of a package, as in 'myapp.*.tasks'")
        package = _import(fixed, f"the package {fixed!r} of {what}")
        folders = [str(folder) for folder in getattr(package, "__path__", ())]
        matches = sorted(set(_matching_modules(package.__name__, folders, place.split(".")[fixed.count(".") + 1 :])))
        hint = "each * stands for one part of a dotted name, ** for any number of them"
    if not matches:
        raise LocateError(f"{what} match nothing; {hint}")
    return matches


def _matching_modules(name: str, folders: Sequence[str], parts: Sequence[str]) -> Iterator[str]:
    """Yield the modules below a package whose names match, part by part. `**` matches any number of parts."""
    part, *rest = parts
    if part == "**" and rest:
        yield from _matching_modules(name, folders, rest)
    wanted = "*" if part == "**" else part
    if not rest:
        for module in pkgutil.iter_modules(folders):
            if module.name != "__main__" and fnmatchcase(module.name, wanted):
                yield f"{name}.{module.name}"
        if part != "**":
            return
    for inner, inside in _packages_in(folders, follows_links=part != "**"):  # links may lead back
        if fnmatchcase(inner, wanted):
            yield from _matching_modules(f"{name}.{inner}", inside, parts if part == "**" else rest)


def _packages_in(folders: Sequence[str], *, follows_links: bool) -> Iterator[tuple[str, list[str]]]:
    """Yield the names and folders of packages, also of those without an `__init__.py`: a namespace package has none."""
    packages: dict[str, list[str]] = {}
    for folder in filter(os.path.isdir, folders):
        for entry in os.scandir(folder):
            is_package = entry.is_dir() and entry.name.isidentifier() and entry.name != "__pycache__"
            if is_package and (follows_links or not entry.is_symlink()):
                packages.setdefault(entry.name, []).append(entry.path)
    yield from packages.items()


# -- importing modules and files


def _import(place: str, what: str) -> ModuleType:
    try:
        return _import_file(place) if place.endswith(".py") else importlib.import_module(place)
    except HorsiesError as error:
        raise LocateError(f"cannot import {what}{_user_line(error)}: {error}") from error
    except (Exception, SystemExit) as error:  # user code runs at import
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{place}.".startswith(f"{missing}."):
            raise LocateError(
                f"cannot import {what}: there is no module {missing!r} here; "
                "run from the folder that contains it, or write the path of a .py file"
            ) from None
        raise LocateError(f"cannot import {what}: {type(error).__name__}: {error}{_user_line(error)}") from error


def _import_file(place: str) -> ModuleType:
    if not os.path.isfile(place):
        raise LocateError(f"there is no file {place!r}; write its path as seen from {os.getcwd()!r}")
    path = os.path.realpath(place)
    if dotted := _dotted_name(path):
        return importlib.import_module(dotted)
    folder, file = os.path.split(path)
    name = os.path.splitext(file)[0]
    if _origin(name) not in (None, path):  # `queue.py` must not replace Python's own module
        name = f"{name}_{sha256(os.fsencode(path)).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise LocateError(f"{path!r} is not a Python file; write the path of one that ends in .py")
    sys.path.insert(0, folder)  # as `python path/file.py` does
    module = module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _dotted_name(path: str) -> str | None:
    """Return the name by which a file can be imported. Imported in another way, it would exist twice once other code imports it."""
    for folder in sys.path:
        root = os.path.realpath(folder)
        if folder and _is_inside(path, root):
            parts = os.path.splitext(os.path.relpath(path, root))[0].split(os.sep)
            name = ".".join(parts)
            if all(part.isidentifier() for part in parts) and _origin(name) == path:
                return name
    return None


def _origin(name: str) -> str | None:
    """Return the file that an import of this name loads: another package of the same name may come first."""
    try:
        spec = find_spec(name)
    except ModuleNotFoundError as error:
        if error.name and f"{name}.".startswith(f"{error.name}."):
            return None  # its parent does not exist, or is not a package
        raise
    except ValueError:
        return ""  # no file: it was not imported in the usual way, for example `__main__`
    return os.path.realpath(spec.origin or "") if spec else None


def _user_line(error: BaseException) -> str:
    """Return the line of the user's own code that raised the error, rather than a line of a library that it called."""
    if isinstance(error, SyntaxError) and error.filename:
        return f" ({error.filename}:{error.lineno})"
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith("<") and not _is_ours(frame.filename)
    ]
    own = [frame for frame in frames if is_user_code(frame.filename)]
    last = (own or frames)[-1:]
    return "".join(f" ({frame.filename}:{frame.lineno})" for frame in last)


def is_user_code(file: str) -> bool:
    """Whether this file belongs neither to a library nor to horsies."""
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not _is_ours(file) and not any(_is_inside(file, folder) for folder in libraries)


def _is_ours(file: str) -> bool:
    return _is_inside(file, os.path.dirname(__file__))


def _is_inside(path: str, folder: str) -> bool:
    return path.startswith(os.path.join(folder, ""))
