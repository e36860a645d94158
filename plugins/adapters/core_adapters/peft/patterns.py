"""The patterns of `rank_pattern` and `alpha_pattern`: regular expressions that come with an adapter.

Owns: which of them are served, so that matching ends soon whatever a file holds. Never does: match. Called by: the format.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from core.api.errors import UserError

LONGEST_MODULE: Final = 512
LONGEST_PATTERN: Final = 512
MOST_PATTERNS: Final = 8192
MOST_REPEATS: Final = 3
MOST_GROUPS: Final = 3
ONE_CHARACTER: Final = re.compile(r"\\.|\[\^?\]?[^\]]*\]", re.DOTALL)
REPEAT: Final = re.compile(r"[*+?{]")


def compiled(path: str, key: str, found: Any) -> list[tuple[re.Pattern[str], Any]]:
    """Return compiled patterns and their values; the first that matches the end of a module's name counts, as in peft.

    Raises UserError for what is no object of patterns, or for a pattern that may take too long.
    """
    found = {} if found is None else found
    if not isinstance(found, Mapping):
        raise UserError(f"{path}: {key} is {found!r:.60}, expected an object.")
    if len(found) > MOST_PATTERNS:
        raise UserError(f"{path}: {key} has {len(found)} patterns, expected at most {MOST_PATTERNS}.")
    patterns = []
    for pattern, value in found.items():
        if not ends_soon(pattern):
            raise UserError(
                f"{path}: {key} has '{pattern[:60]}', which may take too long to match; expected at most {MOST_REPEATS} "
                f"repeats, each of one character, and {MOST_GROUPS} groups."
            )
        try:
            patterns.append((re.compile(rf"(.*\.)?({pattern})$"), value))
        except (re.error, OverflowError, RecursionError) as error:
            raise UserError(f"{path}: {key} has '{pattern[:60]}', which is no regular expression: {error}.") from error
    return patterns


def ends_soon(pattern: str) -> bool:
    """Whether matching takes a small power of the name's length: no repeat of a group, and few repeats and groups.

    `re` holds the interpreter while it matches, so a pattern such as `(.*.*)*=` would stop the engine.
    """
    if len(pattern) > LONGEST_PATTERN:
        return False
    plain = ONE_CHARACTER.sub("x", pattern).replace("(?:", "(")
    repeats = [match.start() for match in REPEAT.finditer(plain)]
    follows = {plain[place - 1 : place] for place in repeats}
    return len(repeats) <= MOST_REPEATS and plain.count("(") <= MOST_GROUPS and not follows & {"(", ")"}
