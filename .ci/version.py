"""One place for the version: core/version.py. `python .ci/version.py` writes it into every pyproject.toml, pins of our own
distributions included, and into the names of images. `python .ci/version.py 0.2.0` sets it first; `--check` reports what
differs and changes nothing.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "core" / "version.py"
IMAGE = re.compile(r"\b(core:|newTag: )\d+\.\d+\.\d+")
OWN_VERSION = re.compile(r'(?m)^(version = ")[^"]+(")')
PIN = re.compile(r'("core-engine(?:-[a-z-]+)?(?:\[[a-z,-]+\])?==)[^"]+(")')
VERSION = re.compile(r'(__version__ = ")([^"]+)(")')


def current() -> str:
    """Return the version of core/version.py."""
    match = VERSION.search(SOURCE.read_text(encoding="utf-8"))
    assert match is not None
    return match[2]


def projects() -> list[Path]:
    """Return the projects whose version is that of the engine."""
    return [ROOT / "pyproject.toml", *sorted(ROOT.glob("plugins/*/pyproject.toml"))]


def images() -> list[Path]:
    """Return the files that name the image of a container."""
    return [ROOT / "docs" / "deployment.md", *(path for path in sorted((ROOT / "deploy").rglob("*")) if path.is_file())]


def with_image(text: str, version: str) -> str:
    """Return a text with the image of this version."""
    return IMAGE.sub(rf"\g<1>{version}", text)


def with_version(text: str, version: str) -> str:
    """Return a project's text with this version, its own and that of its pins."""
    return PIN.sub(rf"\g<1>{version}\g<2>", OWN_VERSION.sub(rf"\g<1>{version}\g<2>", text, count=1))


def main(words: list[str]) -> int:
    """Run the command; return its exit code."""
    checks = words == ["--check"]
    if words and not checks:
        text = SOURCE.read_text(encoding="utf-8")
        SOURCE.write_text(VERSION.sub(rf"\g<1>{words[0]}\g<3>", text), encoding="utf-8")
    version = current()
    stale = []
    given = [(path, with_version) for path in projects()] + [(path, with_image) for path in images()]
    for path, changed in given:
        text = path.read_text(encoding="utf-8")
        right = changed(text, version)
        if right != text:
            stale.append(path)
            if not checks:
                path.write_text(right, encoding="utf-8")
    for path in stale:
        sys.stdout.write(f"{path.relative_to(ROOT)}: {'is not at' if checks else 'now at'} {version}\n")
    return int(checks and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
