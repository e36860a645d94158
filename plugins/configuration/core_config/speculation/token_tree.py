"""The shape of a tree of drafts, in the notation of vLLM's key `speculative_token_tree`.

Owns: that notation. Never does: know a proposer. Called by: the stage that resolves the draft.

A tree is a list of paths, one a draft: (0,) is the first guess for the next token, (1,) the second one, (0, 0) the
first guess after the first, and so on.
"""

from __future__ import annotations

import ast
from itertools import groupby
from typing import Any, Final

from core.api.errors import UserError

KEY: Final = "--speculative-config.speculative_token_tree"
MOST_CHARACTERS: Final = 10_000
FORM: Final = "paths such as [(0,), (1,), (0, 0)]: guesses for the next token, and for the one behind the first guess"

Path = tuple[int, ...]


def token_tree(text: str | None, count: Any) -> tuple[int, ...]:
    """Return for each draft the index of the draft that it follows, -1: the newest token. Empty for a chain.

    count: drafts a step. Raises UserError for text that is not a tree of `count` drafts, or a tree that cannot be
        drawn.
    """
    if text is None:
        return ()
    paths = sorted(_paths(text), key=lambda path: (len(path), path))
    if len(paths) != count:
        raise UserError(f"{KEY} {text!r}: {len(paths)} drafts; num_speculative_tokens says {count}.")
    _check_guesses(text, paths)
    places = {path: index for index, path in enumerate(paths)}
    parents = tuple(places[path[:-1]] if len(path) > 1 else -1 for path in paths)
    is_chain = parents == tuple(range(-1, len(paths) - 1))
    return () if is_chain else parents


def _check_guesses(text: str, paths: list[Path]) -> None:
    """Raise UserError where a guess does not follow the first guess of its level. paths: sorted, by length first."""
    known = set(paths)
    for length, guesses in groupby(paths, key=len):
        expected = [(0,) * (length - 1) + (nth,) for nth in range(len(paths))]
        for path, wanted in zip(guesses, expected, strict=False):
            first = wanted[:-1]
            if first and first not in known:
                raise UserError(f"{KEY} {text!r}: {path} is there, but {first} is not, behind which it comes.")
            if path != wanted:
                raise UserError(
                    f"{KEY} {text!r}: {path} is there, but {wanted} is not; guesses follow the first one only."
                )


def _paths(text: str) -> list[Path]:
    """Return the paths, each once. Raises UserError."""
    wrong = UserError(f"{KEY} {text[:100]!r}: expected {FORM}.")
    if len(text) > MOST_CHARACTERS:
        raise wrong
    try:
        read = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise wrong from error
    if not isinstance(read, list | tuple) or not read:
        raise wrong
    paths: list[Path] = []
    for path in read:
        is_path = isinstance(path, list | tuple) and len(path) > 0
        if not is_path or not all(isinstance(step, int) for step in path):
            raise wrong
        paths.append(tuple(path))
    if len(set(paths)) != len(paths):
        raise wrong
    return paths
