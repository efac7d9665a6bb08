"""`make budgets`: fail when `src/` outgrows its limits, or speaks in retired words.

All violations are printed together, each with what to change, and then one line with the numbers. Nothing is imported or run: the sources
are parsed, and a task's walk is read from docs/architecture.md, where `make walk ARGS=--write` has put it.
"""

import argparse
import ast
import io
import re
import sys
import tokenize
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Final, cast

from tools.walk_page import DocumentedWalk, PageError, documented_walks
from tools.words import ALLOWED, RETIRED, RETIRED_PHRASES, Where, Word

# -- budgets: raise one only with a reason in the commit

MAX_MODULES: Final = 208  # .py files in src/horsies
MAX_LINES: Final = 42_130  # of them, blank lines and comments included; lower it: 29,200 without operations and the dashboard, where the goal was 21,000
MAX_WALK_FILES: Final = 35  # that `add.send(1, 2).get()` passes through
MAX_WALK_FUNCTIONS: Final = 150  # that it enters, in the producer, the worker and its child
MAX_LOCAL_IMPORTS: Final = 1  # function-level imports of our own modules; only ever lower it
# The one is that of the embedded PostgreSQL in app.py: it needs modules of Linux and macOS, and only an app without a database uses it.

# Folders that may import our own modules inside functions: commands that must start quickly, and what needs an extra.
LOCAL_IMPORTS_ALLOWED: Final = ("cli/*", "contrib/*")

# Modules that fewer than two others import, and why each is a module of its own. A module with a .sql file beside it needs no entry: the two
# are one unit, and tests EXPLAIN its statements. Entry points and packages need none either.
SEAMS: Final = {
    "cli/*.py": "one command each, added by cli/main.py",
    "contrib/*.py": "optional extras, imported by users or loaded by name",
    "core/models/*.py": "import paths that older documents use",
    "db/caller_connection.py": "runs statements on connections of other libraries; tested against each of them",
    "db/loop_connection.py": "a connection driven by an event loop; tested without a worker",
    "db/listen_check.py": "the round trip of a notification on connections of its own; the doctor is its only user",
    "doctor/*.py": "one group of checks each, run by doctor/run.py",
    "embedded/*.py": "needs an extra, and modules that exist on Linux and macOS only",
    "executor/around.py": "the user's code around the call of a task; apart from what every task passes through",
    "executor/concurrent.py": "needs asyncio, which a child that runs one task at a time does not load",
    "executor/fork_server.py": "loaded by name in the fork server's process",
    "executor/main.py": "loaded by name in a child process",
    "executor/sequential.py": "the counterpart of executor/concurrent.py",
    "maintenance/failure_detector.py": "a pure decision; tested without a database",
    "model/roundtrip.py": "compares what was sent with what would arrive; a subject of its own",
    "testing/*.py": "for the tests of users; the plug-in loads them when a fixture is used",
    "web/*.py": "parts of the dashboard, put together by web/dashboard.py; needs an extra",
    "worker/http.py": "loaded by name, and only where there is a port: its server takes a megabyte",
    "worker/batch_sender.py": "the connections of the dispatcher; tests put another one in its place",
    "workflows/compile.py": "turns a definition into a graph; tested without a database",
}

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGE: Final = "horsies"


@dataclass(frozen=True, slots=True)
class Limits:
    """The budgets as one value, so that a test can choose others."""

    modules: int = MAX_MODULES
    lines: int = MAX_LINES
    walk_files: int = MAX_WALK_FILES
    walk_functions: int = MAX_WALK_FUNCTIONS
    local_imports: int = MAX_LOCAL_IMPORTS
    local_imports_allowed: Sequence[str] = LOCAL_IMPORTS_ALLOWED
    seams: Mapping[str, str] = field(default_factory=lambda: SEAMS)


@dataclass(frozen=True, slots=True, order=True)
class Violation:
    rule: str
    place: str
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message} [{self.rule}]"


@dataclass(frozen=True, slots=True)
class Module:
    """One source file, parsed."""

    path: Path
    relative: str
    """To src/horsies, with slashes."""
    name: str
    """As it is imported."""
    text: str
    tree: ast.Module


@dataclass(frozen=True, slots=True)
class Tree:
    """What is checked: a repository with src/horsies, docs and a README."""

    root: Path
    modules: Sequence[Module]

    @property
    def package(self) -> Path:
        return self.root / "src" / PACKAGE

    def place(self, path: Path, line: int | None = None) -> str:
        shown = path.relative_to(self.root).as_posix()
        return shown if line is None else f"{shown}:{line}"


def read_tree(root: Path) -> Tree:
    package = root / "src" / PACKAGE
    return Tree(root, [_module(path, package) for path in sorted(package.rglob("*.py"))])


def _module(path: Path, package: Path) -> Module:
    relative = path.relative_to(package)
    parts = [PACKAGE, *relative.with_suffix("").parts]
    name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    text = path.read_text()
    return Module(path, relative.as_posix(), name, text, ast.parse(text, str(path)))


# -- size


def check_size(tree: Tree, limits: Limits) -> Iterator[Violation]:
    if (count := len(tree.modules)) > limits.modules:
        yield Violation(
            "modules", "src", f"{count} modules, at most {limits.modules}; merge modules that one other module imports"
        )
    if (count := line_count(tree)) > limits.lines:
        yield Violation(
            "lines", "src", f"{count} lines of Python, at most {limits.lines}; inline helpers that are used once"
        )


def line_count(tree: Tree) -> int:
    return sum(len(module.text.splitlines()) for module in tree.modules)


# -- the walk


def check_walk(tree: Tree, limits: Limits) -> Iterator[Violation]:
    page = tree.root / "docs" / "architecture.md"
    place = tree.place(page)
    try:
        walks = documented_walks(page.read_text())
    except (PageError, OSError) as error:
        yield Violation("walk", place, f"{error}; add the markers, then run `make walk ARGS=--write`")
        return
    if not walks:
        yield Violation("walk", place, "there is no walk between the markers; run `make walk ARGS=--write`")
        return
    task = walks[0]
    if task.file_count > limits.walk_files:
        yield Violation(
            "walk",
            place,
            f"{task.title} passes through {task.file_count} files, at most {limits.walk_files}; merge modules on "
            "its way, then run `make walk ARGS=--write`",
        )
    if task.function_count > limits.walk_functions:
        yield Violation(
            "walk",
            place,
            f"{task.title} enters {task.function_count} functions, at most {limits.walk_functions}; inline helpers on "
            "its way that are used once, then run `make walk ARGS=--write`",
        )
    for file in dict.fromkeys(file for walk in walks for file in walk.listed_files):
        if not (tree.package / file).is_file():
            yield Violation("walk", place, f"the walk lists {file}, which is gone; run `make walk ARGS=--write`")


def task_walk(tree: Tree) -> DocumentedWalk | None:
    try:
        walks = documented_walks((tree.root / "docs" / "architecture.md").read_text())
    except (PageError, OSError):
        return None
    return walks[0] if walks else None


# -- classes


def check_classes(tree: Tree, _limits: Limits) -> Iterator[Violation]:
    """A second definition of one name in the same scope, as in the branches of an `if`, is the same class."""
    found: defaultdict[str, dict[tuple[str, str], str]] = defaultdict(dict)
    for module in tree.modules:
        for scope, node in _classes(module.tree, ""):
            if node.name == "Meta":  # the name that Django looks for inside a model
                continue
            found[node.name].setdefault((module.relative, scope), tree.place(module.path, node.lineno))
    for name, places in found.items():
        first, *others = places.values()
        for place in others:
            yield Violation("classes", place, f"class {name} is defined at {first} already; choose another name")


def _classes(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.ClassDef]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield scope, child
        named = isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        yield from _classes(child, f"{scope}.{child.name}" if named else scope)


# -- who imports whom


def check_imports(tree: Tree, limits: Limits) -> Iterator[Violation]:
    yield from _lone_modules(tree, limits)
    found = local_imports(tree, limits)
    if len(found) > limits.local_imports:
        for place, name in found:
            yield Violation(
                "local imports", place, f"imports {name} inside a function; move it to the top of the module"
            )
        yield Violation(
            "local imports", "src", f"{len(found)} imports inside functions, at most {limits.local_imports}; see above"
        )


def _lone_modules(tree: Tree, limits: Limits) -> Iterator[Violation]:
    importers = importers_of(tree)
    used: set[str] = set()
    for module in tree.modules:
        patterns = [pattern for pattern in limits.seams if fnmatch(module.relative, pattern)]
        used.update(patterns)
        if patterns or _needs_no_importer(module, tree.root):
            continue
        names = sorted(importers[module.name])
        if len(names) < 2:  # noqa: PLR2004 - the rule itself
            by = f"only {names[0]} imports it" if names else "no module imports it"
            yield Violation(
                "importers",
                tree.place(module.path),
                f"{by}; merge it into its importer, or list it in SEAMS of tools/budgets.py with the reason",
            )
    for pattern in limits.seams.keys() - used:
        yield Violation("importers", "tools/budgets.py", f"SEAMS lists {pattern}, which does not exist; remove it")


def _needs_no_importer(module: Module, root: Path) -> bool:
    is_entry = module.path.stem in {"__init__", "__main__"} or module.name in _entry_points(root)
    return is_entry or module.path.with_suffix(".sql").exists()


def importers_of(tree: Tree) -> Mapping[str, set[str]]:
    """Return, for each module, the modules that import it, in whatever way and place."""
    known = {module.name for module in tree.modules}
    importers: defaultdict[str, set[str]] = defaultdict(set)
    for module in tree.modules:
        for node in ast.walk(module.tree):
            for name in _imported(node):
                if name in known and name != module.name:
                    importers[name].add(module.name)
    return importers


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield what may be modules of ours: `from horsies.db import pool` names a module by two parts."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names if _is_ours(alias.name))
    elif isinstance(node, ast.ImportFrom) and not node.level and node.module and _is_ours(node.module):
        yield node.module
        yield from (f"{node.module}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        named = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if named == "import_module" and isinstance(node.args[0].value, str):
            yield node.args[0].value


def _is_ours(name: str) -> bool:
    return name == PACKAGE or name.startswith(f"{PACKAGE}.")


def local_imports(tree: Tree, limits: Limits) -> list[tuple[str, str]]:
    """Return where functions import modules of ours, and which, outside the folders that may."""
    return [
        (tree.place(module.path, line), name)
        for module in tree.modules
        if not any(fnmatch(module.relative, pattern) for pattern in limits.local_imports_allowed)
        for line, name in sorted(_inside_functions(module.tree))
    ]


def _inside_functions(tree: ast.Module) -> set[tuple[int, str]]:
    return {
        (node.lineno, name)
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom) and (name := next(_imported(node), None))
    }


@cache
def _entry_points(root: Path) -> frozenset[str]:
    """Return the modules that the package's metadata names."""
    path = root / "pyproject.toml"
    if not path.exists():
        return frozenset()
    project = cast("dict[str, dict[str, dict[str, dict[str, str]]]]", tomllib.loads(path.read_text())).get(
        "project", {}
    )
    groups = [cast("dict[str, str]", project.get("scripts", {})), *project.get("entry-points", {}).values()]
    return frozenset(target.partition(":")[0] for group in groups for target in group.values())


# -- words

_PARTS: Final = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_IDENTIFIER: Final = re.compile(r"[A-Za-z_]\w*")
_SQL_COMMENT: Final = re.compile(r"--[^\n]*|/\*.*?\*/", re.DOTALL)
_METRIC: Final = re.compile(rf"\b{PACKAGE}_\w+")
_CODE_SPAN: Final = re.compile(r"`[^`\n]+`")
_STRING_PREFIX: Final = re.compile(r"[A-Za-z]*['\"]")


@dataclass(frozen=True, slots=True)
class _Found:
    line: int
    word: str
    instead: str
    where: str


def check_words(tree: Tree, _limits: Limits) -> Iterator[Violation]:
    checked: list[tuple[Path, Iterable[_Found]]] = [(module.path, _in_python(module)) for module in tree.modules]
    checked += [(path, _in_sql(path.read_text())) for path in sorted(tree.package.rglob("*.sql"))]
    checked += [(path, _in_page(path.read_text())) for path in _pages(tree.root)]
    for path, all_found in checked:
        seen: set[tuple[int, str]] = set()
        for found in [*(_in_path(path, tree.package)), *all_found]:
            if (found.line, found.word) not in seen:
                seen.add((found.line, found.word))
                yield Violation(
                    "words",
                    tree.place(path, found.line),
                    f"{found.word!r} in {found.where} is retired; use {found.instead}",
                )


def _pages(root: Path) -> list[Path]:
    named = [root / name for name in ("README.md", "CONTRIBUTING.md")]
    return [path for path in named if path.exists()] + sorted((root / "docs").rglob("*.md"))


def _in_path(path: Path, package: Path) -> Iterator[_Found]:
    """A module's name may be no retired word; a folder's may not be either, and is reported with its `__init__`."""
    if not path.is_relative_to(package):
        return
    name = path.parent.name if path.stem == "__init__" else path.stem
    yield from _in_name(name, 1, "the module's name", Where.NAME | Where.WHOLE)


def _in_python(module: Module) -> Iterator[_Found]:
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ClassDef):
            yield from _in_name(node.name, node.lineno, f"class {node.name}", Where.WHOLE)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _in_name(node.name, node.lineno, f"function {node.name}", Where.FUNCTION)
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.NAME:
            yield from _in_name(token.string, token.start[0], f"name {token.string}", Where.NAME)
        elif _STRING_PREFIX.match(token.string):
            yield from _in_metrics(token.string, token.start[0])
    yield from _in_text(module.text)


def _in_sql(text: str) -> Iterator[_Found]:
    code = _SQL_COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    for number, line in enumerate(code.splitlines(), 1):
        for name in _IDENTIFIER.findall(line):
            yield from _in_name(name, number, f"SQL name {name}", Where.NAME)
    yield from _in_text(text)


def _in_page(text: str) -> Iterator[_Found]:
    for number, line in enumerate(text.splitlines(), 1):
        yield from _in_metrics(line, number)
        for span in _CODE_SPAN.findall(line):
            for name in _IDENTIFIER.findall(span):
                yield from _in_name(name, number, f"name {name}", Where.NAME)
    yield from _in_text(text)


def _in_metrics(text: str, line: int) -> Iterator[_Found]:
    for name in _METRIC.findall(text):
        yield from _in_name(name, line, f"metric or name {name}", Where.NAME)


def _in_name(name: str, line: int, where: str, scope: Where) -> Iterator[_Found]:
    parts = [part.lower() for part in _PARTS.findall(name)]
    for part in parts:
        if (word := _forms(scope & ~Where.WHOLE).get(part)) is not None:
            yield _Found(line, part, word.instead, where)
    if Where.WHOLE in scope and len(parts) == 1 and (word := _forms(Where.WHOLE).get(parts[0])) is not None:
        yield _Found(line, parts[0], word.instead, where)


@cache
def _forms(scope: Where) -> dict[str, Word]:
    return {form: word for word in RETIRED if word.where & scope for form in word.forms}


@cache
def _text_pattern() -> re.Pattern[str]:
    words = [*_forms(Where.TEXT), *(phrase.replace(" ", r"\s+") for phrase in RETIRED_PHRASES)]
    return re.compile(rf"\b(?:{'|'.join(words)})\b", re.IGNORECASE)


def _in_text(text: str) -> Iterator[_Found]:
    for allowed in ALLOWED:
        text = text.replace(allowed, "")
    for match in _text_pattern().finditer(text):
        word = re.sub(r"\s+", " ", match[0].lower())
        instead = RETIRED_PHRASES[word] if word in RETIRED_PHRASES else _forms(Where.TEXT)[word].instead
        yield _Found(text.count("\n", 0, match.start()) + 1, word, instead, "the text")


# -- all of it

RULES: Final = (check_size, check_walk, check_classes, check_imports, check_words)


def check(root: Path, limits: Limits | None = None) -> list[Violation]:
    tree = read_tree(root)
    return [violation for rule in RULES for violation in rule(tree, limits or Limits())]


def summary(root: Path, violations: Sequence[Violation], limits: Limits | None = None) -> str:
    tree, limits = read_tree(root), limits or Limits()
    walk = task_walk(tree)
    numbers = (
        f"{len(tree.modules)} of {limits.modules} modules",
        f"{line_count(tree)} of {limits.lines} lines",
        f"{walk.file_count if walk else 'unknown'} of {limits.walk_files} files in a task's walk",
        f"{walk.function_count if walk else 'unknown'} of {limits.walk_functions} functions in it",
        f"{len(local_imports(tree, limits))} of {limits.local_imports} local imports",
    )
    counts = Counter(violation.rule for violation in violations)
    broken = ", ".join(f"{rule}: {count}" for rule, count in sorted(counts.items()))
    return f"budgets: {', '.join(numbers)}; {len(violations)} violations{f' ({broken})' if broken else ''}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("make budgets ARGS='...'", description="Check the budgets of src/.")
    parser.add_argument("--rule", action="append", help="show only violations of this rule, such as words or importers")
    options = parser.parse_args(arguments)
    violations = check(ROOT)
    for violation in violations:
        if options.rule is None or violation.rule in options.rule:
            print(violation)
    print(summary(ROOT, violations))
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
