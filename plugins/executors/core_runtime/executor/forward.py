"""The forward pass of a step: run by the layers' code, or replayed from a recording of its kernel calls.

Owns: which buffers and which recording a step uses, and with how many rows. Never does: decide what a step computes, or
sample. Called by: the model runner.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from core_runtime.contracts import BatchView, PlansRecorded
from core_runtime.executor.adapters.placed import PlacedAdapters
from core_runtime.executor.recorder import Recorder
from core_runtime.executor.steps.buffers import StepBuffers
from core_runtime.executor.steps.device_tokens import DeviceTokens
from core_runtime.executor.steps.input_embeddings import InputEmbeddings
from core_runtime.executor.steps.padding import fixed_views, pad
from core_runtime.executor.steps.recordable import ADAPTED, DECODE, HEAD, MIXED, VERIFY
from core_runtime.executor.tail_rows import Rows, Tail
from core_runtime.models.decoder import Decoder
from core_runtime.models.fallback.model import ModuleModel
from core_runtime.models.mixers.state import StateMixer
from core_runtime.models.state_ops.cross_attention import CROSS_ATTENTION


class ForwardPass:
    """Runs a model on the buffers of a step.

    groups: the KV group of each layer.
    rows_each: see `recorder_of`.
    ragged: whether a recording for `rows_each` rows a sequence serves sequences with fewer rows, too.
    adapters: adapters of the model; None: there are none.
    tail: the last blocks, which compute only rows whose results are read; None: all blocks compute all rows.

    adapted: rows of the adapters' tables that the current step uses; the caller sets them before the step.
    has_head: whether this part of the model computes logits; otherwise those of all rows are empty.
    """

    def __init__(
        self,
        model: Decoder | ModuleModel,
        buffers: StepBuffers,
        recorder: Recorder,
        groups: Sequence[int],
        *,
        rows_each: int = 1,
        ragged: bool = False,
        adapters: PlacedAdapters | None = None,
        tail: Tail | None = None,
    ) -> None:
        self.model = model
        self.tail = tail
        self.adapters = adapters
        self.adapted: tuple[int, ...] = ()
        self.has_head = not isinstance(model, Decoder) or model.head is not None
        self._wanted: Rows | None = None
        self._no_logits = torch.empty(model.max_logits, 0)
        self.groups = groups
        # Of each mixer, whether its rows see later ones within spans.
        self._see_spans = [True] * len(groups)
        if isinstance(model, Decoder) and model.spec.spans_in_windows:
            self._see_spans = [mixer.kind == "sliding" for mixer in model.spec.mixers]
        self.buffers = buffers
        self.recorder = recorder
        self._max_num_seqs = len(buffers.seq_lens.array)
        self._rows_each = rows_each
        self._ragged = ragged and model.capture == "any"
        backends = {
            (id(mixer.backend), group): mixer.backend for mixer, group in zip(model.mixers, groups, strict=True)
        }
        self._planning = [(one, group) for (_, group), one in backends.items() if isinstance(one, PlansRecorded)]

    def run(
        self,
        views: Sequence[BatchView],
        taken: DeviceTokens | None = None,
        given: InputEmbeddings | None = None,
        wanted: Rows | None = None,
    ) -> None:
        """Compute the residual stream of the step's tokens.

        views: one per KV group.
        taken: input tokens that only the device has.
        given: embeddings that replace those of some of the tokens.
        wanted: int64 [K], the rows whose results are read, the last ones of some sequences: row i of the residual stream is
            then that of `wanted[i]`. Only where there is a `tail`; None: all.
        """
        self._wanted = wanted
        view = views[0]
        num_tokens = view.num_tokens
        # A recording has fixed arguments: it can express neither trees nor spans nor embeddings, nor rows that are left out,
        # nor every adapter.
        is_special = view.tails is not None or view.sees_to is not None or given is not None or wanted is not None
        if is_special or not self._is_recordable:
            if given is not None and given.places is not None:
                self._turn(given.media, given.places)
            self._send(num_tokens, taken)
            self.recorder.unrecorded[self._name(MIXED)] += 1
            self._compute_unrecorded(views, given)
            return
        kind, size = self._recorded_as(view)
        if size is not None:
            self._run_padded(kind, size, views, taken)
            return

        def call() -> None:
            self._compute(views)

        self._send(num_tokens, taken)
        self.recorder.run(self._name(kind), num_tokens, view.num_seqs, call)

    def follow(self, views: Callable[[], Sequence[BatchView]], taken: DeviceTokens) -> None:
        """Run the step that follows one with the same sequences; each continues with the token that was drawn for it.

        views: make the views of each KV group; called only if there is no recording, or a backend plans for it.
        taken: all tokens of the step.
        """
        count = taken.count
        kind = self._name(DECODE)
        self._wanted = None
        if self._planning or not self._is_recordable or not self.recorder.has(kind, count):
            self.run(views(), taken)
            return
        size = self.recorder.size(kind, count) or count
        num_seqs = self._num_seqs(DECODE, size)
        # the rows after these still hold the padding of the previous step, which had the same size
        self.buffers.positions.changed(count)
        if self.buffers.rotary is not None:
            self.buffers.rotary.changed(count)
        self.buffers.seq_lens.changed(count)
        self._send(count, taken)
        self.recorder.run(kind, size, num_seqs, _never, (count, count))

    @property
    def _is_recordable(self) -> bool:
        """Whether the adapters of the step allow a recording."""
        return self.adapters is None or self.adapters.are_recordable(self.adapted)

    @property
    def changes_head(self) -> bool:
        """Whether adapters of the step change the model's head, whose calls are then run directly."""
        return self.adapters is not None and self.adapters.change_head(self.adapted)

    def _name(self, kind: str) -> str:
        """Return the name of a kind of step in the recorder, which depends on whether the step has adapters."""
        return ADAPTED[kind] if self.adapted else kind

    def _recorded_as(self, view: BatchView) -> tuple[str, int | None]:
        """Return the kind of a step, and the rows of the recording that serves it with the least padding; None: it runs
        unpadded.
        """
        if view.max_query_len == 1:
            return DECODE, self.recorder.size(self._name(DECODE), view.num_tokens)
        size = self.recorder.size(self._name(MIXED), view.num_tokens)
        rows = view.num_seqs * self._rows_each
        if view.max_query_len <= self._rows_each and (self._ragged or view.num_tokens == rows):
            uniform = self.recorder.size(self._name(VERIFY), rows)
            if uniform is not None and (size is None or uniform <= size):
                return VERIFY, uniform
        return MIXED, size

    def _num_seqs(self, kind: str, size: int) -> int:
        """Return the sequences of a recording of `size` rows, padding included."""
        return size // self._rows_each if kind == VERIFY else min(size, self._max_num_seqs)

    def _send(self, num_tokens: int, taken: DeviceTokens | None) -> None:
        """Send the step to the device. Tokens that the device drew itself are moved there to the step's input."""
        if taken is None or not taken.in_order:
            self.buffers.token_ids.changed(num_tokens)
        self.buffers.send()
        # After `send`, which would overwrite the moved tokens with the host's stale ones.
        if taken is not None:
            taken.put(self.buffers)

    def logits(self, count: int) -> Tensor:
        """Compute float32 logits [count, V] of the residual rows in `buffers.logit_rows`; valid until the next call."""
        if not self.has_head:
            return self._no_logits[:count]
        rows = self.choose(count)
        self.buffers.send()
        return self.head(count, rows)

    def choose(self, count: int, kind: str = HEAD) -> int:
        """Mark the first `count` entries of `buffers.logit_rows` as the input of calls of this kind; they are sent with the
        step.

        Returns the number of rows that these calls compute, padding included.
        """
        rows = self.recorder.size(kind, count) or count
        logit_rows = self.buffers.logit_rows
        if rows > count:
            logit_rows.array[count:rows] = 0
        logit_rows.changed(rows)
        return rows

    def head(self, count: int, rows: int) -> Tensor:
        """Compute the logits of the rows that were chosen and sent; see `logits`."""
        chosen = self.buffers.logit_rows.tensor[:rows]

        def call() -> None:
            self.model.logits(chosen)

        self._begin_head()
        if self.changes_head:
            self.recorder.unrecorded[HEAD] += 1
            call()
        else:
            self.recorder.run(HEAD, rows, 0, call, live=(count, 0))
        return self.model.logits_view(count)

    def _begin_head(self) -> None:
        """Set the adapters of the step for its last calls. The blocks may have been replayed, which sets nothing, and what a
        former step had set would change the head of this one.
        """
        if self.adapters is not None:
            assert self.buffers.adapter_rows is not None, "a model with adapters has room for their rows"
            rows = self.buffers.adapter_rows.tensor
            if self._wanted is not None:
                rows = rows[torch.from_numpy(self._wanted).to(rows.device)]
            self.adapters.begin(self.adapted if self.changes_head else (), rows)

    def hidden(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the last hidden states [R, H] of rows [R] of the latest step, at most `max_logits`; valid until the
        next call.
        """
        count = len(rows)
        logit_rows = self.buffers.logit_rows
        logit_rows.array[:count] = rows
        chosen = logit_rows.upload(count)
        self.buffers.send()
        self._begin_head()
        return self.model.hidden(chosen)

    def fill_states(self, blocks: Sequence[NDArray[np.int64]], rows: Tensor) -> None:
        """Fill the states of a sequence in all layers of cross attention. blocks: of each group. rows: of the encoder."""
        for mixer, group in zip(self.model.mixers, self.groups, strict=True):
            if isinstance(mixer, StateMixer) and mixer.spec.op == CROSS_ATTENTION:
                mixer.fill(torch.from_numpy(blocks[group]), rows)

    def captured(self, count: int) -> bool:
        """Whether decoding `count` sequences, head included, replays recordings without padding."""
        recorder = self.recorder
        if self._planning or not self._is_recordable or self.changes_head:
            return False
        kind = self._name(DECODE)
        is_padded = recorder.size(kind, count) is not None or (self.has_head and recorder.size(HEAD, count) is not None)
        return not is_padded and recorder.has(kind, count) and (not self.has_head or recorder.has(HEAD, count))

    def replay(self, count: int) -> None:
        """Replay decoding and head for `count` sequences, when `captured`; `logits_view` then has all logits."""
        self._wanted = None
        self.recorder.run(self._name(DECODE), count, count, _never)
        if self.has_head:
            self.recorder.run(HEAD, count, 0, _never)

    def move(self, moves: Sequence[tuple[int, int]]) -> None:
        """Copy keys and values of some of the step's tokens, in all layers that store them, to the places of others.

        moves: (from, to).
        """
        rows = np.array(moves, np.int64)
        device = self.buffers.logit_rows.tensor.device
        places = []
        for mapping in self.buffers.slot_mappings:
            slots = torch.from_numpy(mapping.array[rows])
            places.append(slots.to(device))
        for mixer, group in zip(self.model.mixers, self.groups, strict=True):
            if mixer.borrows:
                continue
            sources, targets = places[group].unbind(1)
            mixer.backend.move(mixer.handle, sources, targets)

    def residual(self, rows: Sequence[int]) -> Tensor:
        """Return a copy of some rows of the latest residual stream, [len(rows), H]."""
        stream = self.model.workspace.buffer("residual")
        indices = torch.tensor(rows, dtype=torch.int64, device=stream.device)
        return stream[indices]

    def _compute(self, views: Sequence[BatchView]) -> None:
        """Run the model's blocks on the buffers that the views of each KV group show."""
        view = views[0]
        token_ids = self.buffers.token_ids.tensor[: view.num_tokens]
        metadata = self._metadata(views)
        if self.adapters is not None:
            assert self.buffers.adapter_rows is not None, "a model with adapters has room for their rows"
            self.adapters.begin(self.adapted, self.buffers.adapter_rows.tensor[: view.num_tokens])
        positions = view.positions if view.rotary is None else view.rotary
        if self._wanted is None:
            self.model.forward(token_ids, positions, metadata)
            return
        assert self.tail is not None, "only then are rows left out"
        step = self.tail.step(views, self._wanted, self._build, self._begin_tail)
        self.tail.model.forward(token_ids, positions, metadata, step)

    def _build(self, views: Sequence[BatchView]) -> list[Any]:
        """Build the metadata of the tail's mixers."""
        assert self.tail is not None
        return self._metadata(views, self.tail.first_mixer)

    def _begin_tail(self, rows: Tensor) -> None:
        """Set what the rows of a tail, int64 [K], depend on."""
        if self.adapters is not None and self.buffers.adapter_rows is not None:
            self.adapters.begin(self.adapted, self.buffers.adapter_rows.tensor[rows])

    def _compute_unrecorded(self, views: Sequence[BatchView], given: InputEmbeddings | None) -> None:
        """Run the blocks without a recording: for trees, given embeddings and some adapters."""
        model = self.model
        if given is None:
            self._compute(views)
            return
        assert isinstance(model, Decoder), "the configuration lets no other model take embeddings"
        device = self.buffers.token_ids.tensor.device
        model.set_input_embeddings(given.rows.to(device), given.values.to(device))
        if given.added is not None:
            model.set_added(given.media.to(device), given.added.to(device))
        try:
            self._compute(views)
        # The embeddings belong to this step alone; the next one must not see them, even if this one failed.
        finally:
            model.set_input_embeddings(None, None)
            model.set_added(None, None)

    def _turn(self, rows: Tensor, places: Tensor) -> None:
        """Let rows of media, int64 [M], rotate by their three positions, int64 [M, 3]."""
        spare = self.model.spare if isinstance(self.model, Decoder) else None
        assert spare is not None and self.buffers.rotary is not None, "this model's media have one position"
        spare.fill(places.to(self.buffers.rotary.tensor.device))
        self.buffers.rotary.array[rows.numpy()] = spare.first + np.arange(len(rows))

    def _run_padded(self, kind: str, size: int, views: Sequence[BatchView], taken: DeviceTokens | None) -> None:
        """Run the blocks on `size` rows, padding included, so that a recording of that size can be used."""
        view = views[0]
        num_seqs = self._num_seqs(kind, size)
        longest = {DECODE: 1, VERIFY: self._rows_each}.get(kind, size)
        pad(self.buffers, view, size, num_seqs, adapted=bool(self.adapted))

        def call() -> None:
            self._compute(fixed_views(self.buffers, view, size, num_seqs, longest))

        self._send(size, taken)
        if self._planning:
            fixed = fixed_views(self.buffers, view, size, num_seqs, longest)
            for backend, group in self._planning:
                backend.plan_recorded(views[group], fixed[group])
        live = view.num_tokens, view.num_seqs
        self.recorder.run(self._name(kind), size, num_seqs, call, live)

    def _metadata(self, views: Sequence[BatchView], first: int = 0) -> list[Any]:
        """Build the attention metadata of each mixer from `first` on, once for each backend and KV group."""
        built: dict[tuple[int, int, bool], Any] = {}
        metadata: list[Any] = []
        for mixer, group, spans in zip(
            self.model.mixers[first:], self.groups[first:], self._see_spans[first:], strict=True
        ):
            view = views[group]
            hides = view.sees_to is not None and not spans
            key = id(mixer.backend), group, hides
            if key not in built:
                built[key] = mixer.build(replace(view, sees_to=None) if hides else view)
            metadata.append(built[key])
        return metadata


def _never() -> None:
    raise AssertionError("a recording that was there has gone")
