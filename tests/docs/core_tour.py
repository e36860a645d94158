"""The tour of the core, docs/core.md: its citations and excerpts, and the tool that keeps them current.

Owns: citations (a path and line in back-ticks, then a name in brackets), excerpts (a block of Python, cut from the
definition cited last before it), and `python -m tests.docs.core_tour --fix`, which moves line numbers to where the names are
now and renews excerpts whose first and last lines are still there. Never does: change the prose. Called by: a person after
an edit of the core, and the test of the tour.
"""

import argparse
import ast
import re
import sys
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "core.md"
CITATION = re.compile(r"`(?P<path>[\w./-]+\.py):(?P<line>\d+)`(?:(?P<gap>\s)\(`(?P<name>[\w.]+)`\))?")
EXCERPT = re.compile(r"^```python\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)
MAX_EXCERPT = 8
"""Lines of an excerpt; a longer one asks the reader to open the file."""

Span = tuple[int, int]
"""First and last line of a definition."""


@dataclass(frozen=True)
class Citation:
    """One cited place. name: dotted, of the definition there; empty where the page gives none."""

    path: str
    line: int
    name: str
    at: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line} ({self.name})"

    @property
    def span(self) -> Span | None:
        """Where the named definition is, or None."""
        return definitions(self.path).get(self.name)


@dataclass(frozen=True)
class Excerpt:
    """Lines of code in the page, and the citation before them."""

    code: str
    source: Citation | None
    at: int

    def current(self) -> str | None:
        """The same lines as they are in the definition now; None when its first or last line is there no more."""
        lines = self._definition()
        wanted = [line.strip() for line in self.code.splitlines()]
        if not lines or not wanted:
            return None
        for start, line in enumerate(lines):
            if line.strip() == wanted[0]:
                for end in range(start, min(start + MAX_EXCERPT, len(lines))):
                    if lines[end].strip() == wanted[-1]:
                        return textwrap.dedent("\n".join(lines[start : end + 1])) + "\n"
        return None

    @property
    def is_verbatim(self) -> bool:
        """Whether these lines follow one another in the definition, at whatever depth."""
        wanted = self.code.splitlines()
        lines = self._definition()
        windows = (lines[start : start + len(wanted)] for start in range(len(lines) - len(wanted) + 1))
        return any(textwrap.dedent("\n".join(window)) == "\n".join(wanted) for window in windows)

    def _definition(self) -> list[str]:
        span = self.source.span if self.source is not None else None
        if span is None or self.source is None:
            return []
        return (ROOT / self.source.path).read_text(encoding="utf-8").splitlines()[span[0] - 1 : span[1]]


def citations(text: str) -> list[Citation]:
    """All citations, in order."""
    return [
        Citation(found["path"], int(found["line"]), found["name"] or "", found.start())
        for found in CITATION.finditer(text)
    ]


def excerpts(text: str) -> list[Excerpt]:
    """All excerpts, in order."""
    cited = citations(text)
    blocks: list[Excerpt] = []
    for found in EXCERPT.finditer(text):
        before = [citation for citation in cited if citation.at < found.start()]
        blocks.append(Excerpt(found["code"], before[-1] if before else None, found.start("code")))
    return blocks


@cache
def definitions(path: str) -> dict[str, Span]:
    """Classes, functions and assigned names of a file, dotted, each with its lines. Empty for a file that is not there."""
    file = ROOT / path
    if not file.is_file():
        return {}
    spans: dict[str, Span] = {}
    for name, span in _named(ast.parse(file.read_bytes()), ""):
        spans.setdefault(name, span)  # a property's getter, not its setter
    return spans


def _named(parent: ast.Module | ast.ClassDef, prefix: str) -> Iterator[tuple[str, Span]]:
    for node in parent.body:
        span = node.lineno, node.end_lineno or node.lineno
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name, span
        if isinstance(node, ast.ClassDef):
            yield from _named(node, f"{prefix}{node.name}.")
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        yield from ((prefix + target.id, span) for target in targets if isinstance(target, ast.Name))


def fixed(text: str) -> tuple[str, list[str]]:
    """The page with current line numbers and excerpts, and a sentence for each place that has to be edited by hand."""
    problems: list[str] = []

    def moved(found: re.Match[str]) -> str:
        path, name = found["path"], found["name"] or ""
        span = definitions(path).get(name)
        if span is None:
            problems.append(f"{path}:{found['line']}: there is no `{name}` in this file; edit the citation.")
            return found[0]
        return f"`{path}:{span[0]}`{found['gap']}(`{name}`)"

    text = CITATION.sub(moved, text)
    for excerpt in reversed(excerpts(text)):
        if excerpt.is_verbatim:
            continue
        now = excerpt.current()
        if now is None:
            first = excerpt.code.partition("\n")[0].strip()
            problems.append(f"The excerpt of {excerpt.source} that begins with `{first}` has changed; edit it.")
        else:
            text = text[: excerpt.at] + now + text[excerpt.at + len(excerpt.code) :]
    return text, problems


def main(arguments: list[str] | None = None) -> int:
    """Report what is out of date; with `--fix`, rewrite the page. Returns 1 when something is left to edit."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.docs.core_tour", description="Check docs/core.md against core/."
    )
    parser.add_argument("--fix", action="store_true", help="rewrite line numbers and excerpts")
    options = parser.parse_args(arguments)
    text = PAGE.read_text(encoding="utf-8")
    new, problems = fixed(text)
    for problem in problems:
        print(problem)
    if new != text and options.fix:
        PAGE.write_text(new, encoding="utf-8")
        print("docs/core.md: rewritten.")
    elif new != text:
        print("docs/core.md: line numbers or excerpts are out of date; run with --fix.")
    return 1 if problems or (new != text and not options.fix) else 0


if __name__ == "__main__":
    sys.exit(main())
