"""From `package.module:attr` or `path/file.py:attr` to the app, with its task modules imported."""

import importlib
import os
import sys
from collections.abc import Callable, Iterable
from types import ModuleType

from horsies.app import Horsies
from horsies.model.errors import HorsiesError, LocateError
from horsies.tasks.suppress import suppress_sends


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
    from horsies.locate_file import matching_files, matching_modules  # noqa: PLC0415 - brings pathlib

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
    from horsies.locate_file import import_file  # noqa: PLC0415 - brings pathlib

    return import_file(place)


def _where(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}{_line_of(error)}"


def _line_of(error: BaseException) -> str:
    """The line of the user's own code that raised it: not where a library that it called gave up."""
    import traceback  # noqa: PLC0415 - every child loads this module, and hardly one of them has an error to report

    from horsies.locate_file import is_ours, is_own  # noqa: PLC0415 - the same

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
