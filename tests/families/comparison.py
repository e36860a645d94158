"""How far our results are from the reference's, in each way that an engine may compute them.

Owns: the ways. Never does: judge a distance. Called by: the tests of rows, the command line.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tests.families.harness import Harness, Piece
from tests.families.oracle import Reference

Run = Callable[[Sequence[Piece]], Tensor]


def distances(harness: Harness, reference: Reference) -> dict[str, float]:
    """Way → largest absolute difference over all tokens of both prompts: logits, or an encoder's hidden states."""
    if reference.encodes:
        return {"whole": _largest(_whole(harness.hidden, reference), reference)}
    run = harness.logits
    found = {"whole": _largest(_whole(run, reference), reference)}
    for size in (3, 7):
        found[f"chunks of {size}"] = _largest(_chunks(run, reference, size), reference)
    found["company"] = _largest(_company(run, reference), reference)
    return found


def _whole(run: Run, reference: Reference) -> list[Tensor]:
    return [run([Piece(0, ids, 0)]) for ids in reference.prompts]


def _chunks(run: Run, reference: Reference, size: int) -> list[Tensor]:
    found = []
    for number, ids in enumerate(reference.prompts):
        parts = []
        for done in range(0, len(ids), size):
            parts.append(run([Piece(number, ids[done : done + size], done)]))
        found.append(torch.cat(parts))
    return found


def _company(run: Run, reference: Reference) -> list[Tensor]:
    """Both prompts in the same steps, the longer one in longer chunks, until both go token by token."""
    found: list[list[Tensor]] = [[] for _ in reference.prompts]
    done = [0 for _ in reference.prompts]
    while True:
        pieces = []
        for number, ids in enumerate(reference.prompts):
            left = len(ids) - done[number]
            size = 9 - 6 * number if left > 6 else 1
            if left:
                pieces.append(Piece(number, ids[done[number] : done[number] + size], done[number]))
        if not pieces:
            return [torch.cat(parts) for parts in found]
        lengths = [len(piece.tokens) for piece in pieces]
        for piece, part in zip(pieces, run(pieces).split(lengths), strict=True):
            found[piece.sequence].append(part)
            done[piece.sequence] += len(piece.tokens)


def _largest(ours: Sequence[Tensor], reference: Reference) -> float:
    pairs = zip(ours, reference.logits, strict=True)
    return max(float((mine - theirs).abs().max()) for mine, theirs in pairs)
