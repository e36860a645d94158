"""The common step: the sequences of the step before compute one token each, and nobody asks for more than tokens.

Owns: what such steps share, prepared once for a batch: which rows, their noise keys, the recorded sampling. Never does:
anything that a full step would do differently: same buffers, same kernels, same bits. Called by: the model runner.

A step then costs a few numpy operations and three native calls, whatever the number of sequences. The tokens that one step
draws are written where the next one reads them.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from core.api.step_plan import Int32Array, StepPlan, StepResult
from core.executor.batch import PersistentBatch
from core.executor.forward import SAMPLE, ForwardPass
from core.sampling.native import NativeRace
from core.sampling.sampler import Sampler


class SteadyDecode:
    """Steps of one batch. `begin` it after a full step; while a plan `continues` it, `run` replaces the full step."""

    def __init__(self, batch: PersistentBatch, forward: ForwardPass, sampler: Sampler) -> None:
        self._batch, self._forward, self._sampler = batch, forward, sampler
        self._race = None if sampler.race is None else NativeRace(sampler.race)
        self._slots: Int32Array | None = None
        self._output_lists: list[list[int]] = []
        self._num_steps = 0

    def begin(self, plan: StepPlan, result: StepResult) -> None:
        """Prepare for plans like this one, which was run in full, if they can be served."""
        count = len(plan.slots)
        same = result.same_slots or np.array_equal(result.slots, plan.slots)
        if self._race is None or plan.total_num_tokens != count or not same or plan.drafts:
            return
        if not 0 < count <= self._forward.model.max_logits or not self._forward.captured(count):
            return
        sequences = [self._batch[slot] for slot in plan.slots.tolist()]
        if not all(sequence.row.state.plain for sequence in sequences):
            return
        buffers = self._batch.buffers
        self._race.remember([sequence.row.state for sequence in sequences], buffers.token_ids.tensor[:count])
        self._race.output_indices[:] = [len(sequence.output_token_ids) - 1 for sequence in sequences]
        self._output_lists = [sequence.output_token_ids for sequence in sequences]
        self._forward.recorder.forget(SAMPLE)
        self._slots, self._num_steps = plan.slots, 0
        self._positions, self._seq_lens = buffers.positions.array[:count], buffers.seq_lens.array[:count]
        buffers.token_ids.array[:count] = self._batch.last_token[plan.slots]
        buffers.cu_seqlens_q.array[: count + 1] = np.arange(count + 1)
        buffers.logit_rows.array[:count] = np.arange(count)

    def continues(self, plan: StepPlan) -> bool:
        """Whether the plan is for the same sequences, one token each."""
        return plan.same_batch and self._slots is not None

    def run(self, plan: StepPlan) -> StepResult | None:
        """The step. None: a row could not be sampled; its logits are there, and the full way must say why."""
        race, count = self._race, len(plan.slots)
        assert race is not None
        for slot, block_ids in plan.new_block_ids.items():
            self._batch.tables.append(slot, block_ids)
        self._positions[:] = plan.num_computed
        np.add(plan.num_computed, 1, out=self._seq_lens)
        self._batch.tables.advance(plan.slots, self._positions)
        race.output_indices += 1
        self._forward.replay(count)
        self._forward.recorder.run(SAMPLE, count, 0, lambda: self._draw(race, count))
        token_ids = race.tokens_drawn
        if token_ids.min() < 0:
            self.end()
            return None
        deque(map(list.append, self._output_lists, token_ids.tolist()), maxlen=0)
        self._num_steps += 1
        return StepResult(slots=plan.slots, token_ids=token_ids.astype(np.int32), same_slots=True)

    def _draw(self, race: NativeRace, count: int) -> None:
        race.draw(self._forward.model.logits_view(count)[:, : self._sampler.vocab_size])

    def end(self) -> None:
        """Bring the batch up to date: a step that is run in full follows."""
        if self._slots is not None:
            self._batch.num_tokens[self._slots] += self._num_steps
            self._batch.last_token[self._slots] = [output[-1] for output in self._output_lists]
            self._slots = None
