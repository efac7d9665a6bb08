"""From `path/file.py` to the module, and whose file it is."""

import fnmatch
import glob
import importlib
import importlib.util
import pkgutil
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from horsies.model.errors import LocateError

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
