"""Modules import one another without circles, and the core stays small."""

import ast
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from tests.layout import PACKAGES

DATA = tomllib.loads((Path(__file__).parent / "imports.toml").read_text(encoding="utf-8"))
LIMITS = DATA["limits"]


@cache
def files() -> Mapping[str, Path]:
    """The modules of the product by name; templates of the kit are none."""
    found: dict[str, Path] = {}
    for folder in PACKAGES.values():
        for path in folder.rglob("*.py"):
            parts = path.relative_to(folder.parent).with_suffix("").parts
            if "templates" not in parts:
                found[".".join(parts).removesuffix(".__init__")] = path
    return found


@cache
def imports() -> Mapping[str, frozenset[str]]:
    """The modules of the product that each of them imports: at its top, in a function, or for types alone."""
    return {name: frozenset(imported(name)) - {name} for name in files()}


def imported(name: str) -> Iterator[str]:
    """The modules of the product that one module names in its import statements."""
    for node in statements(ast.parse(files()[name].read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in files())
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            for alias in node.names:
                below = f"{node.module}.{alias.name}"
                if below in files():
                    yield below
                elif node.module in files():
                    yield node.module


def statements(block: ast.AST) -> Iterator[ast.AST]:
    """All statements below a node. Expressions are most of a tree and hold none: they are left out, to be quick."""
    for part in ("body", "orelse", "finalbody", "handlers", "cases"):
        below = getattr(block, part, None)
        if isinstance(below, list):
            for node in below:
                yield node
                yield from statements(node)


def circles(arrows: Mapping[str, frozenset[str]]) -> list[list[str]]:
    """Groups of modules that reach one another, the largest first (Tarjan's algorithm, without recursion)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []
    for root in arrows:
        if root in index:
            continue
        index[root] = low[root] = len(index)
        stack.append(root)
        work = [(root, iter(sorted(arrows[root])))]
        while work:
            name, rest = work[-1]
            target = next(rest, None)
            if target is not None:
                if target not in index:
                    index[target] = low[target] = len(index)
                    stack.append(target)
                    work.append((target, iter(sorted(arrows[target]))))
                elif target in stack:
                    low[name] = min(low[name], index[target])
                continue
            work.pop()
            if work:
                above = work[-1][0]
                low[above] = min(low[above], low[name])
            if low[name] == index[name]:
                begin = stack.index(name)
                group = stack[begin:]
                del stack[begin:]
                if len(group) > 1:
                    found.append(sorted(group))
    return sorted(found, key=len, reverse=True)


def test_circles_are_found() -> None:
    arrows = {"a": "b", "b": "c", "c": "a", "d": "a", "e": "f", "f": "e", "g": ""}
    assert circles({name: frozenset(targets) for name, targets in arrows.items()}) == [["a", "b", "c"], ["e", "f"]]


def test_modules_import_one_another_in_few_and_small_circles() -> None:
    found = circles(imports())
    shown = "\n".join(" <-> ".join(group) for group in found)
    assert len(found) <= LIMITS["circles"], shown
    assert all(len(group) <= LIMITS["files_in_a_circle"] for group in found), shown


def test_the_core_stays_small() -> None:
    paths = [path for name, path in files().items() if name.split(".")[0] == "core"]
    lines = sum(len(path.read_bytes().splitlines()) for path in paths)
    assert lines <= LIMITS["core_lines"]
    assert len(paths) <= LIMITS["core_files"]
    assert len(files()["core.engine.core"].read_bytes().splitlines()) <= LIMITS["engine_core_lines"]
