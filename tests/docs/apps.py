"""Writes docs/recipes/apps: the settings of applications and services, one page each, from apps.toml.

    python -m tests.docs.apps

Owns: the words of the pages. Never does: run an application, which `make test-clients` does for those whose row names a
program. Called by a person; test_apps.py compares the pages.
"""

from __future__ import annotations

import shlex
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = HERE.parents[1] / "docs" / "recipes" / "apps"
REQUIREMENTS = (HERE.parent / "clients" / "requirements.txt", HERE.parent / "clients" / "requirements-apps.txt")
PROGRAMS = HERE.parent / "clients" / "python"
WRITTEN = "Written by `python -m tests.docs.apps` from `tests/docs/apps.toml`; edit that."
ONLY_SETTINGS = "*Settings only*: they are those of its documentation, and were not run."
INTRO = """`HOST:8000` is the server's address, `NAME` the model as `/v1/models` lists it, and `KEY` one of its
`--api-key`, or any text where it has none."""


@cache
def apps() -> dict[str, dict[str, Any]]:
    """Return the rows by the name of their page."""
    return tomllib.loads((HERE / "apps.toml").read_text(encoding="utf-8"))


@cache
def versions() -> dict[str, str]:
    """Return the versions in the clients' environments, by package."""
    lines = [line for path in REQUIREMENTS for line in path.read_text(encoding="utf-8").splitlines()]
    pinned = [line.partition("==") for line in lines if "==" in line and not line.startswith("#")]
    return {name.partition("[")[0]: version for name, _, version in pinned}


def state(row: dict[str, Any]) -> str:
    """Return how far a row was run. Raises KeyError for a package that the environment does not have."""
    if not row.get("run"):
        return ONLY_SETTINGS
    packages = " and ".join(f"{package} {versions()[package]}" for package in row["run"])
    return f"*Run with {packages}*: `tests/clients/python/{row['program']}`, by `make test-clients`."


def command(row: dict[str, Any]) -> str:
    """Return the command that starts a server for an application."""
    return shlex.join(["core", "serve", "MODEL", *row.get("serve", [])])


def page(row: dict[str, Any]) -> str:
    """Return the text of an application's page."""
    parts = [f"# {row['title']}", WRITTEN, f"{row['what']} {state(row)}", INTRO, f"```bash\n{command(row)}\n```"]
    if row["settings"]:
        cells = "\n".join(f"| {where} | {value} |" for where, value in row["settings"])
        parts.append(f"| setting | value |\n|---|---|\n{cells}")
    if row.get("code"):
        parts.append(f"```{row['language']}\n{row['code'].strip()}\n```")
    parts.append("What it needs:\n\n" + "\n".join(f"- {need}" for need in row["needs"]))
    parts += row["notes"]
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """Return the page that lists the others."""
    rows = [
        f"| [{row['title']}]({name}.md) | {row['what']} | {state(row).partition(':')[0].strip('*')} |"
        for name, row in apps().items()
    ]
    words = (
        "Whatever lets its user enter the address of an OpenAI server works; these pages say where each asks for it."
    )
    return "\n".join(
        ["# Applications", "", WRITTEN, "", words, "", "| name | what it is | tried |", "|---|---|---|", *rows, ""]
    )


def main() -> None:
    """Write every page."""
    PAGES.mkdir(parents=True, exist_ok=True)
    (PAGES / "README.md").write_text(index(), encoding="utf-8")
    for name, row in apps().items():
        (PAGES / f"{name}.md").write_text(page(row), encoding="utf-8")


if __name__ == "__main__":
    main()
