"""Names of the files of a sharded state: `model-rank-{rank}-part-{part}.safetensors`.

Owns: the pattern and its checks. Never does: open a file. Called by: the sharded_state loader, and
the saving of one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from core.api.errors import UserError

DEFAULT = "model-rank-{rank}-part-{part}.safetensors"
RANK = 0
"""Rank in file names: one rank saves whole tensors, which any number of ranks reads."""


def check(pattern: str) -> None:
    """Check that a pattern can name files. Raises UserError."""
    fields = re.findall(r"\{([^{}]*)\}", pattern)
    plain = re.sub(r"\{[^{}]*\}", "", pattern)
    known = fields.count("part") == 1 and fields.count("rank") <= 1 and set(fields) <= {"rank", "part"}
    if not known or re.search(r"[{}/\\]", plain) or not pattern.endswith(".safetensors"):
        raise UserError(
            f"pattern '{pattern}': expected a file name with one {{part}}, at most one {{rank}} and the ending .safetensors, "
            f"such as {DEFAULT}."
        )


def named(pattern: str, part: int) -> str:
    """Return the file name of one part of this rank."""
    return pattern.replace("{rank}", str(RANK)).replace("{part}", str(part))


def found(pattern: str, names: Iterable[str]) -> dict[int, dict[int, str]]:
    """Return rank → number of a part → file name. A pattern without a rank counts as rank 0."""
    expression = re.escape(pattern)
    expression = expression.replace(r"\{rank\}", r"(?P<rank>\d+)").replace(r"\{part\}", r"(?P<part>\d+)")
    ranks: dict[int, dict[int, str]] = {}
    for name in names:
        match = re.fullmatch(expression, name)
        if match is None:
            continue
        fields = match.groupdict()
        rank = int(fields.get("rank", RANK))
        ranks.setdefault(rank, {})[int(fields["part"])] = name
    return ranks
