"""The training itself: the draft learns the target's distribution, also from what it thinks itself.

Owns: batches, the loss and the schedule. Never does: generate text. Called by: `train_draft.py`.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from rich.progress import Progress
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from draft_training.draft import Draft
from draft_training.lessons import Lesson

WARM_UP = 0.06
"""Part of the time in which the learning rate rises; behind it, it falls along a cosine."""
LATER_PASSES = 0.8
"""Weight of a pass beside the one before it."""


@dataclass(slots=True)
class Settings:
    """What may be chosen.

    seconds: of training.
    steps: most of them.
    passes: tokens that the draft learns to look ahead.
    learning_rate: the highest.
    batch_tokens: most of a step, padding included, unless one answer is longer.
    autocast: multiply in bfloat16.
    seed: of the order.
    """

    seconds: float
    steps: int = 1_000_000
    passes: int = 2
    learning_rate: float = 1e-3
    batch_tokens: int = 1200
    autocast: bool = False
    seed: int = 0


@dataclass(slots=True)
class Batch:
    """Lessons side by side.

    tokens: int64 [B, T].
    taps: float32 [B, T, 3H].
    last: float32 [B, T, H].
    learned: bool [B, T], true where the next token is of an answer.
    """

    tokens: Tensor
    taps: Tensor
    last: Tensor
    learned: Tensor


def train(draft: Draft, lessons: Sequence[Lesson], embedding: Tensor, head: Tensor, settings: Settings) -> list[float]:
    """Train until the time is over; the loss of each step.

    embedding: [tokens of the target, H]. head: the target's own, [tokens that the draft knows, H].
    """
    optimizer = torch.optim.AdamW(
        draft.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=0.01, fused=True
    )
    losses: list[float] = []
    scale = scale_of(lessons)
    with torch.no_grad():
        draft.fc.weight.mul_(scale)
    begin = time.monotonic()
    with Progress() as progress:
        bar = progress.add_task("training", total=settings.seconds)
        for batch in batches(lessons, settings):
            spent = time.monotonic() - begin
            part = max(spent / settings.seconds, len(losses) / settings.steps)
            if part >= 1:
                break
            for group in optimizer.param_groups:
                group["lr"] = settings.learning_rate * rate(part)
            batch.taps /= scale
            with torch.autocast("cpu", torch.bfloat16, enabled=settings.autocast):
                loss = loss_of(draft, batch, embedding, head, settings.passes)
            optimizer.zero_grad()
            loss.backward()
            clip_grad_norm_(draft.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            latest = sum(losses[-50:]) / len(losses[-50:])
            description = f"training: step {len(losses)}, loss {latest:.3f}"
            progress.update(bar, completed=min(spent, settings.seconds), description=description)
    with torch.no_grad():
        draft.fc.weight.div_(scale)
    return losses


def scale_of(lessons: Sequence[Lesson]) -> Tensor:
    """How large each number of the taps is, [3H]. Some are a thousand times others, and steps of one length would not suit."""
    rows = torch.cat([lesson.taps[::10].float() for lesson in lessons])
    return rows.square().mean(dim=0).sqrt().clamp_min(1e-6)


def loss_of(draft: Draft, batch: Batch, embedding: Tensor, head: Tensor, passes: int) -> Tensor:
    """Cross entropy of the target's distribution, which is cut to the draft's tokens, over all passes."""
    wanted = F.linear(batch.last[batch.learned], head).float().softmax(dim=1)
    embedded = F.embedding(batch.tokens, embedding)
    total = torch.zeros(())
    for number, hidden in enumerate(draft.passes(embedded, batch.taps, passes)):
        logits = draft.logits(hidden[batch.learned]).float()
        loss = F.cross_entropy(logits, wanted)
        total = total + loss * LATER_PASSES**number
    return total


def batches(lessons: Sequence[Lesson], settings: Settings) -> Iterator[Batch]:
    """Without end, in another order each time round; lessons of about one length come together."""
    rng = random.Random(settings.seed)
    while True:
        order = sorted(lessons, key=lambda lesson: len(lesson.answer.tokens) + rng.random() * 20)
        groups: list[list[Lesson]] = [[]]
        for lesson in order:
            size = len(lesson.answer.tokens) * (len(groups[-1]) + 1)
            if groups[-1] and size > settings.batch_tokens:
                groups.append([])
            groups[-1].append(lesson)
        rng.shuffle(groups)
        for group in groups:
            yield batch_of(group)


def batch_of(lessons: Sequence[Lesson]) -> Batch:
    """Lessons side by side, zeros behind the shorter ones."""
    longest = max(len(lesson.answer.tokens) for lesson in lessons)
    taps_size = lessons[0].taps.shape[1]
    hidden_size = lessons[0].last.shape[1]
    count = len(lessons)
    batch = Batch(
        tokens=torch.zeros(count, longest, dtype=torch.int64),
        taps=torch.zeros(count, longest, taps_size),
        last=torch.zeros(count, longest, hidden_size),
        learned=torch.zeros(count, longest, dtype=torch.bool),
    )
    for row, lesson in enumerate(lessons):
        length = len(lesson.answer.tokens)
        batch.tokens[row, :length] = torch.tensor(lesson.answer.tokens)
        batch.taps[row, :length] = lesson.taps
        batch.last[row, :length] = lesson.last
        batch.learned[row, lesson.answer.first - 1 : length - 1] = True
    return batch


def rate(part: float) -> float:
    """Of the highest learning rate, when this part of the time is over."""
    if part < WARM_UP:
        return max(part / WARM_UP, 0.02)
    return 0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * min(part, 1)))
