"""`core plugins new KIND NAME`: a plugin package that works as written.

Owns: the command's arguments and output. Never does: install. Called by: `core plugins`.
"""

from __future__ import annotations

from pathlib import Path

from core.api.errors import UserError, nearest
from core.args.show import Section, show
from core.commands.words import take_help, take_value
from core_kit.skeleton import FORMS, add_to_package, kinds, plain_kind, write_package


def new(words: list[str]) -> int:
    """Write the package; returns the exit code."""
    if take_help(words) is not None:
        rows = (
            ("--path DIR", "Where the package's folder is made. Default: the current one."),
            ("--into DIR", "Add the plugin to the package in this folder instead."),
        )
        show(
            "core plugins new KIND NAME",
            f"A package that works as written. Kinds: {', '.join([*kinds(), *FORMS])}.",
            [Section("Options", rows)],
        )
        return 0
    path, into = take_value(words, "--path"), take_value(words, "--into")
    if path is not None and into is not None:
        raise UserError(f"core plugins new --into {into}: the package is there already; leave --path out.")
    if len(words) < 2:
        raise UserError(f"core plugins new KIND NAME: say what to make; kinds: {', '.join([*kinds(), *FORMS])}.")
    if len(words) > 2:
        raise UserError(f"core plugins new {words[2]}: unexpected argument.{nearest(words[2], ('--path', '--into'))}")
    kind, name = words
    if into is None:
        folder, *files = write_package(kind, name, Path(path or ".").expanduser())
    else:
        folder, *files = add_to_package(kind, name, Path(into).expanduser())
    print(f"{folder}")
    for file in files:
        print(f"  {file.relative_to(folder)}")
    plugin = name.strip().lower().replace("-", "_")
    print("\nNext:")
    print(f'  pip install -e "{folder}[test]"')
    print(f"  core plugins check {plain_kind(kind)}.{plugin}")
    print(f"  python -m pytest {folder}")
    return 0
