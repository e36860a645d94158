"""How many drafts the target would accept, worked out on its own answers.

Owns: the ways of drawing a draft, and the walk over an answer. Never does: run the target. Called by: `train_draft.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.sampling.noise import NoiseKey, gumbel, words_of
from draft_training.draft import Draft
from draft_training.lessons import Answer, Lesson
from draft_training.training import batch_of

OTHER_SEED = 1 << 40
"""Added to a seed, it gives noise that has nothing to do with it."""

Found = dict[str, list[NDArray[np.bool_]]]
"""How drafts are drawn → for each answer whether the token at each of its places was drafted, bool [passes, tokens]."""


@dataclass(slots=True)
class Acceptance:
    """What became of drafts.

    offered: by their place in a step, where all in front of them were accepted.
    accepted: of these.
    steps: of the target.
    tokens: that came of them.
    """

    offered: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    steps: int = 0
    tokens: int = 0

    @property
    def rates(self) -> list[float]:
        """The accepted part of those offered, by place."""
        return [hit / max(1, tried) for hit, tried in zip(self.accepted, self.offered, strict=True)]

    @property
    def tokens_per_step(self) -> float:
        """With one that the target gives itself."""
        return self.tokens / max(1, self.steps)


@torch.inference_mode()
def drafted(draft: Draft, lessons: Sequence[Lesson], embedding: Tensor, passes: int) -> Found:
    """Draft every token of each answer. Greedy answers: by `greedy`; others: by `shared`, `argmax` and `independent`."""
    found: Found = {"greedy": [], "shared": [], "argmax": [], "independent": []}
    for lesson in lessons:
        answer = lesson.answer
        batch = batch_of([lesson])
        embedded = F.embedding(batch.tokens, embedding)
        thoughts = draft.passes(embedded, batch.taps, passes)
        logits = torch.stack([draft.logits(hidden[batch.learned]).float() for hidden in thoughts])
        actual = torch.tensor(answer.tokens[answer.first :])
        choices = {"greedy" if answer.temperature == 0 else "argmax": logits.argmax(dim=2)}
        if answer.temperature:
            for name, seed in (("shared", answer.seed), ("independent", answer.seed + OTHER_SEED)):
                noise = noise_of(seed, len(actual), draft.kept)
                choices[name] = (logits / answer.temperature + noise).argmax(dim=2)
        for name, choice in choices.items():
            found[name].append((draft.kept[choice] == actual).numpy())
    return found


def noise_of(seed: int, count: int, ids: Tensor) -> Tensor:
    """The noise with which the sampler draws the tokens 0 to count - 1 of an answer, of some ids: float32 [count, len(ids)]."""
    keys = [NoiseKey(seed, index, 0) for index in range(count)]
    words = words_of(keys, [ids.numpy()] * count)
    return torch.from_numpy(np.stack([gumbel(row) for row in words]))


def walk(answers: Sequence[NDArray[np.bool_]], count: int) -> Acceptance:
    """Go through answers as the engine does, with `count` drafts a step. answers: a value of `Found`.

    The first token comes from the prompt's own step, and the last one of each step is the target's own.
    """
    total = Acceptance([0] * count, [0] * count)
    for is_right in answers:
        place = 1
        length = is_right.shape[1]
        while place < length:
            most = min(count, length - place - 1)
            place += _step(total, is_right, place, most) + 1
    return total


def _step(total: Acceptance, is_right: NDArray[np.bool_], place: int, most: int) -> int:
    """Count one step of at most `most` drafts from a place on; the number of those accepted."""
    accepted = 0
    while accepted < most:
        total.offered[accepted] += 1
        if not is_right[accepted, place + accepted]:
            break
        total.accepted[accepted] += 1
        accepted += 1
    total.steps += 1
    total.tokens += accepted + 1
    return accepted


def known(answers: Sequence[Answer], kept: Tensor) -> float:
    """Part of the answers' tokens that the draft's head has."""
    tokens = torch.tensor([token for answer in answers for token in answer.tokens[answer.first :]])
    return torch.isin(tokens, kept).float().mean().item()
