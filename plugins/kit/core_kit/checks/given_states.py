"""Checks of attention backends with cross attention, whose states an encoder's rows give.

Owns: the checks. Never does: know a layout. Called by: `core_kit.checks.attention`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from core_kit.case import Failure, Skipped, Subject
from core_kit.checks.states import TOLERANCE, StateRun
from core_kit.oracles.numbers import close, generator, same_bits
from core_runtime.contracts import FillsStates
from core_runtime.models.state_ops.cross_attention import CROSS_ATTENTION, cross_attention

EXAMPLES = (
    cross_attention(heads=2, head_size=8, length=11, width=12),
    cross_attention(heads=3, head_size=16, length=70, width=48),
)
LENGTHS = (9, 1, 4)


def given_states_are_attended_to(subject: Subject) -> None:
    """Cross attention equals its formula in batches and in chunks, and steps leave the given states as they are."""
    for run, rows in _runs(subject):
        held = run.raw.clone()
        expected = [_formula(run, inputs, own) for inputs, own in zip(run.sequences, rows, strict=True)]
        for chunk in (0, 1, 3):
            for got, wanted in zip(run.all(chunk), expected, strict=True):
                close(got, wanted, TOLERANCE, f"cross attention in chunks of {chunk}, {len(wanted)} tokens")
        same_bits(run.raw, held, "the given states after the steps")


def given_states_move(subject: Subject) -> None:
    """Cross attention: a state that is read in other blocks is there after the step."""
    for run, rows in _runs(subject):
        expected = _formula(run, run.sequences[0], rows[1])
        (first,) = run.step([(0, 0, 2)], [1])
        (second,) = run.step([(0, 2, 9)])
        close(torch.cat([first, second]), expected, TOLERANCE, "cross attention whose state has moved")


CHECKS = (given_states_are_attended_to, given_states_move)


def _runs(subject: Subject) -> Iterator[tuple[StateRun, list[Tensor]]]:
    """Yield runs whose states are given, with the rows of each sequence."""
    if CROSS_ATTENTION not in (subject.manifest.spec.capabilities.get("state_ops") or ()):
        raise Skipped("it serves no cross attention (capability state_ops)")
    if not isinstance(subject.loaded, FillsStates):
        raise Failure(f"it declares the op '{CROSS_ATTENTION}'; add fill_state(handle, blocks, rows)")
    for spec in EXAMPLES:
        random = generator(str(spec.sizes))
        sequences = [torch.randn(length, spec.input_size, generator=random) for length in LENGTHS]
        rows = [torch.randn(spec.sizes["length"], spec.sizes["width"], generator=random) for _ in LENGTHS]
        run = StateRun(subject.loaded, spec, sequences, random)
        for table, own in zip(run.tables, rows, strict=True):
            subject.loaded.fill_state(run.handle, torch.tensor(table), own)
        yield run, rows


def _formula(run: StateRun, queries: Tensor, rows: Tensor) -> Tensor:
    heads, size = run.spec.sizes["heads"], run.spec.sizes["head_size"]
    params = {name: each.double() for name, each in run.params.items()}
    keys = (rows.double() @ params["k_proj.weight"].t()).view(-1, heads, size)
    values = (rows.double() @ params["v_proj.weight"].t() + params["v_proj.bias"]).view(-1, heads, size)
    scores = torch.einsum("thd,shd->ths", queries.double().view(-1, heads, size), keys) / size**0.5
    return torch.einsum("ths,shd->thd", scores.softmax(-1), values).flatten(1)
