"""Checks of attention backends that serve layers with a state: values, cuts, company, beginnings, ownership of blocks.

Owns: those checks, and random sequences to run. Never does: know a layout. Called by: `core.testing.attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import STATE_DTYPE, StateQuery, StateSpec
from core.config.waivers import promises
from core.models import lfm2
from core.plugin.capabilities import layer_kinds, state_reasons
from core.plugin.contracts import HasExampleState
from core.testing.case import Failure, Skipped, Subject
from core.testing.numbers import close, generator, same_bits
from core.testing.padding import NO_PADDING, Padding
from core.testing.reference import NAN_BYTE, batch_view

TOLERANCE = 1e-4
LENGTHS = (23, 1, 2, 40)
BLOCK_BYTES = 96
"""So small that a state takes several blocks."""


def short_conv(inputs: Tensor, params: dict[str, Tensor]) -> Tensor:
    """The op's formula in float64 for one whole sequence: out [L, C] of inputs [L, 3 C]."""
    b, c, x = inputs.double().chunk(3, dim=1)
    taps = params["conv.weight"].double()[:, 0]
    padded = torch.cat([torch.zeros(taps.shape[1] - 1, len(taps), dtype=torch.float64), b * x])
    convolved = torch.stack([(window * taps.t()).sum(0) for window in padded.unfold(0, taps.shape[1], 1).mT])
    return c * (convolved + params["conv.bias"].double() if "conv.bias" in params else convolved)


FORMULAS = {"short_conv": short_conv}
EXAMPLES = {"short_conv": [lfm2.short_conv(24, 3), lfm2.short_conv(7, 4, bias=True), lfm2.short_conv(16, 2)]}


class StateRun:
    """Some sequences in one layer of a backend; blocks are shuffled, and hold NaN where nothing was written.

    sequences: inputs [L, W] of each. tables: block ids of each. padding: of every step.
    """

    def __init__(
        self,
        backend: Any,
        spec: StateSpec,
        sequences: Sequence[Tensor],
        random: torch.Generator,
        padding: Padding = NO_PADDING,
    ) -> None:
        self.backend, self.spec, self.sequences = backend, spec, list(sequences)
        self.padding = padding
        count = -(-backend.state_layout(spec, STATE_DTYPE) // BLOCK_BYTES)
        ids = (torch.randperm(count * len(sequences), generator=random) + 1).tolist()
        self.tables = [ids[i * count : (i + 1) * count] for i in range(len(sequences))]
        self.raw = torch.zeros(len(ids) + 2, BLOCK_BYTES, dtype=torch.uint8)
        own = generator("params")
        self.params = {name: torch.randn(shape, generator=own) for name, shape in spec.params.items()}
        self.handle = backend.bind_state(spec, STATE_DTYPE, self.raw, self.params)
        self.raw.fill_(NAN_BYTE)

    def step(self, spans: Sequence[tuple[int, int, int]]) -> list[Tensor]:
        """Compute tokens [start, stop) of some sequences: (index, start, stop) each; returns their outputs."""
        lens = [stop - start for _, start, stop in spans]
        view = batch_view(lens, [stop for *_, stop in spans], [self.tables[i] for i, *_ in spans], 1 << 20)
        view = self.padding.view(view)
        inputs = self.padding.tensor(torch.cat([self.sequences[i][start:stop] for i, start, stop in spans]))
        copy, out = inputs.clone(), torch.full((len(inputs), self.spec.output_size), torch.nan)
        self.backend.forward_state(self.handle, inputs, self.backend.build_state(view), out)
        same_bits(inputs.nan_to_num(), copy.nan_to_num(), "the inputs after the step")
        return list(out[: sum(lens)].split(lens))

    def all(self, chunk: int = 0) -> list[Tensor]:
        """Every sequence to its end, at most `chunk` tokens of each a step (0: at once)."""
        outs: list[list[Tensor]] = [[] for _ in self.sequences]
        start, longest = 0, max(map(len, self.sequences))
        while start < longest:
            ends = [min(start + (chunk or longest), len(inputs)) for inputs in self.sequences]
            spans = [(i, start, stop) for i, stop in enumerate(ends) if stop > start]
            for (i, *_), part in zip(spans, self.step(spans), strict=True):
                outs[i].append(part)
            start += chunk or longest
        return [torch.cat(parts) for parts in outs]


def states_are_what_the_formula_says(subject: Subject) -> None:
    """Layers with a state: ops that the core describes equal their formula, alone and in a batch."""
    tried = 0
    for spec, what in _examples(subject):
        if spec.op not in FORMULAS:
            continue
        run = StateRun(subject.loaded, spec, _random(spec, what), generator(what))
        for inputs, got in zip(run.sequences, run.all(), strict=True):
            close(got, FORMULAS[spec.op](inputs, run.params), TOLERANCE, f"{what}, {len(inputs)} tokens")
        tried += 1
    if not tried:
        raise Skipped("the core describes none of its ops; compare with a formula of your own")


def states_survive_cuts(subject: Subject) -> None:
    """Layers with a state: prompts in chunks, then one token after the other, equal the whole prompt at once."""
    for spec, what in _examples(subject):
        sequences = _random(spec, what)
        whole = StateRun(subject.loaded, spec, sequences, generator(what)).all()
        for chunk in (1, 3, 7):
            cut = StateRun(subject.loaded, spec, sequences, generator(what)).all(chunk)
            for mine, expected in zip(cut, whole, strict=True):
                close(mine, expected, TOLERANCE, f"{what} in chunks of {chunk}, {len(mine)} tokens")


def states_are_kept_apart(subject: Subject) -> None:
    """Layers with a state: a neighbour, even one of NaN, changes nothing, and a sequence alone finds its state again."""
    for spec, what in _examples(subject):
        mine, *_, other = _random(spec, what)
        alone = StateRun(subject.loaded, spec, [mine], generator(what)).all()[0]
        run = StateRun(subject.loaded, spec, [other * torch.nan, mine, other], generator(what))
        first = run.step([(0, 0, 5), (1, 0, 9), (2, 0, 4)])[1]
        second = run.step([(1, 9, 12), (2, 4, 20), (0, 5, 6)])[0]
        third = run.step([(1, 12, len(mine))])[0]
        close(torch.cat([first, second, third]), alone, TOLERANCE, f"{what} in company")


def states_begin_afresh(subject: Subject) -> None:
    """Layers with a state: a sequence that begins in blocks of another one starts from nothing."""
    for spec, what in _examples(subject):
        sequences = _random(spec, what)
        run = StateRun(subject.loaded, spec, sequences, generator(what))
        first = run.all()
        for got, expected in zip(run.all(3), first, strict=True):
            close(got, expected, TOLERANCE, f"{what}, computed again in blocks that hold an old state")


def states_stay_in_their_blocks(subject: Subject) -> None:
    """Layers with a state: it takes no more bytes than planned, and a step changes the states of its sequences alone."""
    for spec, what in _examples(subject):
        told = subject.loaded.state_layout(spec, STATE_DTYPE)
        if not 0 < told <= spec.state_bytes:
            raise Failure(f"{what}: state_layout tells {told!r} bytes, the plan {spec.state_bytes} (4 a number)")
        run = StateRun(subject.loaded, spec, _random(spec, what), generator(what))
        before = run.raw.clone()
        run.step([(0, 0, 6), (3, 0, 1)])
        changed = {int(block) for block in (run.raw != before).any(1).nonzero().flatten()}
        foreign = changed - {*run.tables[0], *run.tables[3]}
        if foreign:
            raise Failure(f"{what}: the step changed block {min(foreign)}, which is not in a table of its sequences")


def states_know_padding(subject: Subject) -> None:
    """Layers with a state: with `padding`, what lies behind a step's own rows and sequences changes no bit and no state."""
    if not subject.manifest.spec.capabilities.get("padding", False):
        raise Skipped("it does not declare padding; a device's recordings then serve steps of exactly their size")
    paddings = [Padding()]
    if getattr(subject.loaded, "capture", "never") == "any":
        paddings.append(Padding(bare=True))
    for spec, what in _examples(subject):
        for padding in paddings:
            plain, padded = (
                StateRun(subject.loaded, spec, _random(spec, what), generator(what), own)
                for own in (NO_PADDING, padding)
            )
            for got, expected in zip(padded.all(7), plain.all(7), strict=True):
                same_bits(got, expected, f"{what} with {padding.rows} padded rows")
            same_bits(padded.raw, plain.raw, f"{what} with {padding.sequences} padded sequences: the cache")


def states_are_invariant_as_claimed(subject: Subject) -> None:
    """Layers with a state: with `batch_invariant` (or `state` in `invariant_kinds`) bits depend on the sequence alone."""
    if not promises(subject.manifest, "fast", "state"):
        raise Skipped("it does not claim it; `core config explain` says so to users")
    for spec, what in _examples(subject):
        sequences = _random(spec, what)
        alone = StateRun(subject.loaded, spec, sequences[-1:], generator(what)).all()[0]
        for chunk in (0, 1, 7):
            got = StateRun(subject.loaded, spec, sequences, generator(what)).all(chunk)[-1]
            same_bits(got, alone, f"{what} in a batch, in chunks of {chunk}, compared with alone and at once")


CHECKS = (
    states_are_what_the_formula_says,
    states_survive_cuts,
    states_are_kept_apart,
    states_begin_afresh,
    states_stay_in_their_blocks,
    states_know_padding,
    states_are_invariant_as_claimed,
)


def _examples(subject: Subject) -> Iterator[tuple[StateSpec, str]]:
    """Layers that the backend is tried with, each with a label: those of the kit, or the backend's own."""
    declared = subject.manifest.spec.capabilities
    if "state" not in layer_kinds(declared):
        raise Skipped("it serves no layers with a state (capability layer_kinds)")
    ops = declared.get("state_ops") or ()
    if not ops:
        raise Failure("it serves layers with a state; declare which ones (capability state_ops)")
    for op in ops:
        backend = subject.loaded
        if op not in EXAMPLES and not isinstance(backend, HasExampleState):
            raise Failure(
                f"the kit does not know the op '{op}'; add example_state(op), which answers a small StateSpec"
            )
        examples = EXAMPLES[op] if op in EXAMPLES else [backend.example_state(op)]
        served = [spec for spec in examples if not _reasons(subject, spec)]
        if not served:
            raise Failure(f"it declares the op '{op}' but refuses every layer with it")
        for spec in served:
            yield spec, f"{op} of {spec.sizes or spec.input_size}"


def _reasons(subject: Subject, spec: StateSpec) -> list[Reason]:
    query = StateQuery(spec, subject.device)
    return state_reasons(subject.manifest.spec, query) or list(subject.manifest.call("core_supports", query=query))


def _random(spec: StateSpec, what: str) -> list[Tensor]:
    random = generator(what)
    return [torch.randn(length, spec.input_size, generator=random) for length in LENGTHS]
