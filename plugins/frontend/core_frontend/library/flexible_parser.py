"""An argparse parser that reads command lines as `core serve` does.

Owns: `FlexibleArgumentParser`: underscores in flags, and dotted keys of mappings. Never does: know an argument. Called
by: users, with `EngineArgs.add_cli_args`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from core_config.arguments.plain import loose


class FlexibleArgumentParser(argparse.ArgumentParser):
    """An argparse parser for flexible flags. They may have underscores, and `--x.a.b 1 --x.c 2` means `--x '{"a": {"b":
    1}, "c": 2}'`.

    An argument that is added again replaces the earlier one.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        options.setdefault("conflict_handler", "resolve")
        super().__init__(*args, **options)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        """Parse as argparse does, after the words are converted."""
        words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(self._plain(words), namespace)

    def _plain(self, words: Sequence[str]) -> list[str]:
        """Convert words for argparse: dashes in flags, and each mapping as one JSON text at the end."""
        plain: list[str] = []
        trees: dict[str, dict[str, Any]] = {}
        rest = list(words)
        while rest:
            word = rest.pop(0)
            if word == "--":
                plain += [*_as_json(trees), word, *rest]
                return plain
            if not word.startswith("--"):
                plain.append(word)
                continue
            name, equals, value = word.partition("=")
            head, dot, path = name.partition(".")
            flag = head.replace("_", "-")
            if not dot:
                plain.append(flag + equals + value)
                continue
            if not equals:
                if not rest:
                    self.error(f"argument {name}: expected one argument")
                value = rest.pop(0)
            self._put(trees.setdefault(flag, {}), name, path, value)
        return [*plain, *_as_json(trees)]

    def _put(self, tree: dict[str, Any], name: str, path: str, value: str) -> None:
        """Put a value where the keys of its path say."""
        *parents, last = path.replace("-", "_").split(".")
        for key in parents:
            child = tree.setdefault(key, {})
            if not isinstance(child, dict):
                self.error(f"argument {name}: '{key}' has a value already, and cannot have keys")
            tree = child
        tree[last] = loose(value)


def _as_json(trees: dict[str, dict[str, Any]]) -> list[str]:
    """Return the mappings as flags and JSON values."""
    words: list[str] = []
    for flag, tree in trees.items():
        words.append(f"{flag}={json.dumps(tree)}")
    return words
