"""From `path/file.py` to the module, and whose file it is."""

import importlib
import importlib.util
import sys
import sysconfig
from hashlib import sha256
from pathlib import Path
from types import ModuleType

from horsies.model.errors import LocateError


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


def is_own(file: str) -> bool:
    """The user's own code: no library's, and not ours."""
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    return not is_ours(file) and not any(Path(file).is_relative_to(place) for place in libraries)


def is_ours(file: str) -> bool:
    return Path(file).is_relative_to(Path(__file__).parent)
