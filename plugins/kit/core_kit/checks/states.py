"""Checks of attention backends that serve layers with a state: values, chunking, batching, initial states, ownership of
blocks.

Owns: the checks, and random test sequences. Never does: know a layout. Called by: `core_kit.checks.attention`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from core.api.reason import Reason
from core.api.specs import STATE_DTYPE, StateQuery, StateSpec
from core.plugin.capabilities import layer_kinds
from core_config.selection.reasons import promises, state_reasons
from core_kit.case import Failure, Skipped, Subject
from core_kit.oracles.numbers import close, generator, same_bits
from core_kit.oracles.padding import NO_PADDING, Padding
from core_kit.oracles.reference import NAN_BYTE, batch_view, changed_blocks
from core_kit.oracles.state_formulas import EXAMPLES, FORMULAS
from core_runtime.contracts import HasExampleState, MovesStates
from core_runtime.models.state_ops.cross_attention import CROSS_ATTENTION

TOLERANCE = 1e-4
NARROW_TOLERANCE = 0.2
"""Of states of 16 bits beside float32: outputs are of the order of one."""
LENGTHS = (23, 1, 2, 40)
BLOCK_BYTES = 96
"""Block size so small that a state takes several blocks."""
STATE_BLOCK_SIZE = 1 << 20
"""Tokens per block in a step: large enough that every position is in a table's first block."""


class StateRun:
    """A test run of sequences in one layer of a backend; blocks are shuffled, and hold NaN where nothing was written.

    sequences: inputs [L, W] of each.
    tables: block ids of each.
    padding: of every step.
    params: the op's tensors; random by default.
    dtype: storage type of the states.
    """

    def __init__(
        self,
        backend: Any,
        spec: StateSpec,
        sequences: Sequence[Tensor],
        random: torch.Generator,
        padding: Padding = NO_PADDING,
        params: Mapping[str, Tensor] | None = None,
        dtype: str = STATE_DTYPE,
    ) -> None:
        self.backend = backend
        self.spec = spec
        self.sequences = list(sequences)
        self.padding = padding
        state_bytes = backend.state_layout(spec, dtype)
        state_blocks = -(-state_bytes // BLOCK_BYTES)
        num_blocks = state_blocks * len(sequences)
        shuffled = torch.randperm(num_blocks, generator=random) + 1  # no sequence owns block 0
        self.tables = shuffled.view(len(sequences), state_blocks).tolist()
        self.raw = torch.zeros(num_blocks + 2, BLOCK_BYTES, dtype=torch.uint8)
        self.params = _params(spec) if params is None else params
        self.handle = backend.bind_state(spec, dtype, self.raw, self.params)
        self.raw.fill_(NAN_BYTE)

    def step(self, spans: Sequence[tuple[int, int, int]], sources: Sequence[int] = ()) -> list[Tensor]:
        """Compute tokens [start, stop) of some sequences, given as (index, start, stop); returns their outputs.

        sources: for each of them the index of the table in whose blocks its state is read; empty: in its own.
        """
        query_lens: list[int] = []
        seq_lens: list[int] = []
        tables: list[list[int]] = []
        new_inputs: list[Tensor] = []
        for i, start, stop in spans:
            query_lens.append(stop - start)
            seq_lens.append(stop)
            tables.append(self.tables[i])
            new_inputs.append(self.sequences[i][start:stop])
        if sources:
            tables = [[*table, *self.tables[source]] for table, source in zip(tables, sources, strict=True)]
        view = batch_view(query_lens, seq_lens, tables, STATE_BLOCK_SIZE)
        if sources:
            view.state_sources = view.block_table[:, len(self.tables[0]) :]
        inputs = self.padding.tensor(torch.cat(new_inputs))
        before = inputs.clone()
        out = torch.full((len(inputs), self.spec.output_size), torch.nan)
        metadata = self.backend.build_state(self.padding.view(view))
        self.backend.forward_state(self.handle, inputs, metadata, out)
        same_bits(inputs.nan_to_num(), before.nan_to_num(), "the inputs after the step")
        live = out[: sum(query_lens)]
        return list(live.split(query_lens))

    def all(self, chunk: int = 0) -> list[Tensor]:
        """Run every sequence to its end, at most `chunk` tokens of each per step (0: all at once)."""
        outs: list[list[Tensor]] = [[] for _ in self.sequences]
        longest = max(map(len, self.sequences))
        stride = chunk or longest
        for start in range(0, longest, stride):
            spans = []
            for i, inputs in enumerate(self.sequences):
                stop = min(start + stride, len(inputs))
                if stop > start:
                    spans.append((i, start, stop))
            for (i, _, _), part in zip(spans, self.step(spans), strict=True):
                outs[i].append(part)
        return [torch.cat(parts) for parts in outs]


def states_are_what_the_formula_says(subject: Subject) -> None:
    """Layers with a state: ops that the core describes equal their formula, alone and in a batch."""
    tried = 0
    for spec, what in _examples(subject):
        formula = FORMULAS.get(spec.op)
        if formula is None:
            continue
        run = _run(subject, spec, what)
        for inputs, got in zip(run.sequences, run.all(), strict=True):
            expected = formula(spec, inputs, run.params)
            close(got, expected, TOLERANCE, f"{what}, {len(inputs)} tokens")
        tried += 1
    if not tried:
        raise Skipped("the core describes none of its ops; compare with a formula of your own")


def states_survive_cuts(subject: Subject) -> None:
    """Layers with a state: prompts in chunks, then one token after the other, equal the whole prompt at once."""
    for spec, what in _examples(subject):
        whole = _run(subject, spec, what).all()
        for chunk in (1, 3, 7):
            cut = _run(subject, spec, what).all(chunk)
            for mine, expected in zip(cut, whole, strict=True):
                close(mine, expected, TOLERANCE, f"{what} in chunks of {chunk}, {len(mine)} tokens")


def states_are_kept_apart(subject: Subject) -> None:
    """Layers with a state: a neighbour, even one of NaN, changes nothing, and a sequence alone finds its state again."""
    for spec, what in _examples(subject):
        mine, *_, other = _random(spec, what)
        alone = StateRun(subject.loaded, spec, [mine], generator(what)).all()[0]
        run = StateRun(subject.loaded, spec, [other * torch.nan, mine, other], generator(what))
        _, first, _ = run.step([(0, 0, 5), (1, 0, 9), (2, 0, 4)])
        second, _, _ = run.step([(1, 9, 12), (2, 4, 20), (0, 5, 6)])
        (third,) = run.step([(1, 12, len(mine))])
        got = torch.cat([first, second, third])
        close(got, alone, TOLERANCE, f"{what} in company")


def states_begin_afresh(subject: Subject) -> None:
    """Layers with a state: a sequence that begins in blocks of another one starts from nothing."""
    for spec, what in _examples(subject):
        run = _run(subject, spec, what)
        first = run.all()
        again = run.all(3)
        for got, expected in zip(again, first, strict=True):
            close(got, expected, TOLERANCE, f"{what}, computed again in blocks that hold an old state")


def states_stay_in_their_blocks(subject: Subject) -> None:
    """Layers with a state: it takes no more bytes than planned, and a step changes the states of its sequences alone."""
    for spec, what in _examples(subject):
        told = subject.loaded.state_layout(spec, STATE_DTYPE)
        if not 0 < told <= spec.state_bytes:
            raise Failure(f"{what}: state_layout tells {told!r} bytes, the plan {spec.state_bytes} (4 a number)")
        run = _run(subject, spec, what)
        before = run.raw.clone()
        run.step([(0, 0, 6), (3, 0, 1)])
        own = run.tables[0] + run.tables[3]
        foreign = changed_blocks(run.raw, before).difference(own)
        if foreign:
            raise Failure(f"{what}: the step changed block {min(foreign)}, which is not in a table of its sequences")


def states_are_their_bytes(subject: Subject) -> None:
    """Layers with a state: a copy of its bytes is continued by another sequence, and earlier bytes undo later tokens."""
    for spec, what in _examples(subject):
        *_, tokens = _random(spec, what)
        run = StateRun(subject.loaded, spec, [tokens, tokens], generator(what))
        run.step([(0, 0, 9)])
        run.step([(1, 0, 4)])
        mine, other = run.tables
        run.raw[other] = run.raw[mine]
        first, second = run.step([(0, 9, 14), (1, 9, 14)])
        close(second, first, TOLERANCE, f"{what}, continued from a copy of another sequence's bytes")
        before = run.raw[mine].clone()
        (expected,) = run.step([(0, 14, 16)])
        run.raw[mine] = before
        (again,) = run.step([(0, 14, 16)])
        close(again, expected, TOLERANCE, f"{what}, computed again from earlier bytes")


def states_are_bound_again(subject: Subject) -> None:
    """Layers with a state: bound once more to blocks in use, whatever its tensors, it leaves and continues their states."""
    for spec, what in _examples(subject):
        *_, tokens = _random(spec, what)
        run = StateRun(subject.loaded, spec, [tokens, tokens], generator(what))
        run.step([(0, 0, 9), (1, 0, 9)])
        own, before = run.handle, run.raw.clone()
        other = {name: 2 * tensor for name, tensor in run.params.items()}
        subject.loaded.bind_state(spec, STATE_DTYPE, run.raw, other)
        run.handle = subject.loaded.bind_state(spec, STATE_DTYPE, run.raw, run.params)
        same_bits(run.raw, before, f"{what}: blocks to which it is bound once more")
        (second,) = run.step([(1, 9, 14)])
        run.handle = own
        (first,) = run.step([(0, 9, 14)])
        close(second, first, TOLERANCE, f"{what}, by another handle with the same tensors")


def narrow_states_survive_cuts(subject: Subject) -> None:
    """Layers with a state: in each of `state_dtypes`, chunks change nothing, and its bytes fit the plan."""
    types = [dtype for dtype in subject.manifest.spec.capabilities.get("state_dtypes", ()) if dtype != STATE_DTYPE]
    for spec, what in _examples(subject):
        wide = _run(subject, spec, what).all()
        for dtype in [*types, *(f"{STATE_DTYPE}+{dtype}" for dtype in types)]:
            told = subject.loaded.state_layout(spec, dtype)
            if not 0 < told <= spec.bytes_in(dtype):
                raise Failure(f"{what}: state_layout tells {told!r} bytes in {dtype}, the plan {spec.bytes_in(dtype)}")
            whole = _run(subject, spec, what, dtype=dtype).all()
            for got, expected in zip(whole, wide, strict=True):
                close(got, expected, NARROW_TOLERANCE, f"{what} in {dtype}, compared with {STATE_DTYPE}")
            for chunk in (1, 3, 7):
                for got, expected in zip(_run(subject, spec, what, dtype=dtype).all(chunk), whole, strict=True):
                    close(got, expected, TOLERANCE, f"{what} in {dtype}, in chunks of {chunk}")
    if not types:
        raise Skipped("it declares no state_dtypes but float32")


def states_move(subject: Subject) -> None:
    """Layers with a state: with `moves_states`, blocks in which a state is read but not written stay as they are."""
    if not isinstance(subject.loaded, MovesStates):
        raise Skipped("it does not declare moves_states; states are copied first")
    for spec, what in _examples(subject):
        *_, tokens = _random(spec, what)
        run = StateRun(subject.loaded, spec, [tokens, tokens, tokens], generator(what))
        run.step([(0, 0, 9), (2, 0, 9)])
        mine = run.tables[0]
        before = run.raw[mine].clone()
        moved, expected = run.step([(1, 9, 10), (2, 9, 10)], [0, 2])
        close(moved, expected, TOLERANCE, f"{what}, read in other blocks")
        same_bits(run.raw[mine], before, f"{what}: blocks that a step reads only")
        moved, expected = run.step([(1, 10, 14), (2, 10, 14)])
        close(moved, expected, TOLERANCE, f"{what}, after its state has moved")


def states_know_padding(subject: Subject) -> None:
    """Layers with a state: with `padding`, what lies behind a step's own rows and sequences changes no bit and no state."""
    if not subject.manifest.spec.capabilities.get("padding", False):
        raise Skipped("it does not declare padding; a device's recordings then serve steps of exactly their size")
    paddings = [Padding()]
    if getattr(subject.loaded, "capture", "never") == "any":
        paddings.append(Padding(bare=True))
    for spec, what in _examples(subject):
        for padding in paddings:
            plain = _run(subject, spec, what)
            padded = _run(subject, spec, what, padding)
            for got, expected in zip(padded.all(7), plain.all(7), strict=True):
                same_bits(got, expected, f"{what} with {padding.rows} padded rows")
            same_bits(padded.raw, plain.raw, f"{what} with {padding.sequences} padded sequences: the cache")


def states_are_invariant_as_claimed(subject: Subject) -> None:
    """Layers with a state: with `batch_invariant` (or `state` in `invariant_kinds`) bits depend on the sequence alone."""
    if not promises(subject.manifest.spec, "fast", "state"):
        raise Skipped("it does not claim it; `core config explain` says so to users")
    for spec, what in _examples(subject):
        last = _random(spec, what)[-1]
        (alone,) = StateRun(subject.loaded, spec, [last], generator(what)).all()
        for chunk in (0, 1, 7):
            *_, got = _run(subject, spec, what).all(chunk)
            same_bits(got, alone, f"{what} in a batch, in chunks of {chunk}, compared with alone and at once")


CHECKS = (
    states_are_what_the_formula_says,
    states_survive_cuts,
    states_are_kept_apart,
    states_begin_afresh,
    states_stay_in_their_blocks,
    states_are_their_bytes,
    states_are_bound_again,
    narrow_states_survive_cuts,
    states_move,
    states_know_padding,
    states_are_invariant_as_claimed,
)


def _examples(subject: Subject) -> Iterator[tuple[StateSpec, str]]:
    """Yield test layers with labels: the kit's, or the backend's own."""
    declared = subject.manifest.spec.capabilities
    if "state" not in layer_kinds(declared):
        raise Skipped("it serves no layers with a state (capability layer_kinds)")
    ops = declared.get("state_ops") or ()
    if not ops:
        raise Failure("it serves layers with a state; declare which ones (capability state_ops)")
    written = [op for op in ops if op != CROSS_ATTENTION]  # its states are given, see `given_states`
    if not written:
        raise Skipped("its tokens write no states")
    for op in written:
        examples = _examples_of(subject.loaded, op)
        served = [spec for spec in examples if not _reasons(subject, spec)]
        if not served:
            raise Failure(f"it declares the op '{op}' but refuses every layer with it")
        for spec in served:
            yield spec, f"{op} of {spec.sizes or spec.input_size}"


def _examples_of(backend: Any, op: str) -> list[StateSpec]:
    """Return test layers with one op: the kit's, or the backend's own for an op unknown to the kit. Raises Failure."""
    if op in EXAMPLES:
        return EXAMPLES[op]
    if isinstance(backend, HasExampleState):
        return [backend.example_state(op)]
    raise Failure(f"the kit does not know the op '{op}'; add example_state(op), which answers a small StateSpec")


def _reasons(subject: Subject, spec: StateSpec) -> list[Reason]:
    """Return reasons as selection does: from capabilities first, then from the plugin."""
    query = StateQuery(spec, subject.device)
    declared = state_reasons(subject.manifest.spec, query)
    return declared or list(subject.manifest.call("core_supports", query=query))


def _params(spec: StateSpec) -> dict[str, Tensor]:
    """Return random parameters, the same in every call."""
    own = generator("params")
    params: dict[str, Tensor] = {}
    for name, shape in spec.params.items():
        param = torch.randn(shape, generator=own)
        if len(shape) == 2:
            param /= shape[1] ** 0.5  # keeps the magnitude of matrix products
        params[name] = param
    return params


def _run(
    subject: Subject, spec: StateSpec, what: str, padding: Padding = NO_PADDING, dtype: str = STATE_DTYPE
) -> StateRun:
    """Return the random sequences of a layer in an unused cache, with the same sequences and blocks in every call."""
    return StateRun(subject.loaded, spec, _random(spec, what), generator(what), padding, dtype=dtype)


def _random(spec: StateSpec, what: str) -> list[Tensor]:
    random = generator(what)
    return [torch.randn(length, spec.input_size, generator=random) for length in LENGTHS]
