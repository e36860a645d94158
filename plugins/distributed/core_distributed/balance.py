"""Moves of experts between ranks while an engine runs.

Owns: `Balance`, one rank's end: the counts of the latest steps, and the moves that are left to do. Never does: compute a step,
choose places (`expert_policy` does). Called by: the executor and the other ranks, before every step.

Between two steps, a rank reads at most one expert from the checkpoint. All ranks do the same: they decide from the counts of
rank 0, and a move takes effect once every rank has said that it has read its part. If one could not, the move is dropped.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import numpy as np
import torch
from torch import Tensor

from core.api.errors import CoreError
from core_distributed.arguments import RanksArguments
from core_distributed.expert_policy import Loads, Move, balance_of, chosen_moves, rank_loads
from core_distributed.layout import Group
from core_runtime.contracts import LinearKernel
from core_runtime.executor.instance import packing_of
from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.executor.worker import Worker
from core_runtime.models.decoder import Decoder
from core_runtime.models.expert_places import ExpertPlaces
from core_runtime.models.mlp import ExpertsMLP
from core_runtime.models.tensors.packing import Packing
from core_runtime.specs.decoder_spec import DecoderSpec

logger = logging.getLogger(__name__)

BUCKETS: Final = 8
"""The window of counts moves on by this part of itself."""
PAGE: Final = 4096
DONE, FAILED = b"\0", b"\1"


class Balance:
    """Counts choices, and moves experts. worker: this rank's. group: all ranks.

    value: mean load of ranks over the highest one, in the latest window; 0 before it is known.
    num_moves: experts that all ranks together have read so far.
    """

    def __init__(self, worker: Worker, group: Group, arguments: RanksArguments) -> None:
        self._worker = worker
        self._group = group
        self._interval = arguments.balance_interval
        self._bucket = max(arguments.balance_window // BUCKETS, 1)
        self._log_interval = arguments.balance_log_interval
        self.value = 0.0
        self.num_moves = 0
        self._undecided: list[int] = []
        self._begin()

    def before_step(self) -> None:
        """Do what is due between two steps; called on all ranks. Raises what the group raises when a rank is gone."""
        if self._model is not self._worker.instances[0].model:
            self._begin()  # the models were built again, with the places of the start
        if not self._layers:
            return
        self._steps += 1
        if self._steps % self._bucket == 0:
            self._counted.append(self._totals())
        if self._log_interval and self._steps % self._log_interval == 0:
            self._log()
        if self._steps % self._interval == 0:
            self._undecided = list(range(len(self._layers)))
        if not self._moves and self._undecided:
            self._decide(self._undecided.pop(0))
        if self._moves:
            layer, move = self._moves.popleft()
            self._move(layer, move)

    def _begin(self) -> None:
        """Begin with the model at hand."""
        self._checkpoint, self._packing = self._open()
        self._model = self._worker.instances[0].model
        assert isinstance(self._model, Decoder), "layers of transformers have no ranks"
        self._free: list[Tensor] = []  # memory of experts that have moved away, which the next ones take
        self._layers: list[tuple[int, ExpertsMLP, ExpertPlaces]] = []
        for index, block in enumerate(self._model.weights.blocks):
            mlp = block.mlp
            if isinstance(mlp, ExpertsMLP) and mlp.places is not None and mlp.separate is not None:
                self._layers.append((index, mlp, mlp.places))
        self._steps = 0
        self._counted: deque[list[Loads]] = deque([self._totals()], maxlen=BUCKETS + 1)
        self._undecided.clear()
        self._moves: deque[tuple[int, Move]] = deque()

    def _open(self) -> tuple[Checkpoint, Packing]:
        """Open the checkpoint for the experts that will move: later, this would make a step wait for 0.2 s."""
        worker = self._worker
        checkpoint = worker.open_checkpoint(worker.chain(worker.config.weights))
        assert worker.ranks is not None, "experts move between ranks"
        part = worker.ranks.part_of(checkpoint.spec)
        packing = packing_of(worker.config, checkpoint, worker.device, worker.plugins, part=part)
        packing.room = self._room
        return checkpoint, packing

    def _totals(self) -> list[Loads]:
        return [places.loads.numpy().astype(np.float64) for _, _, places in self._layers]

    def _loads(self, layer: int) -> Loads:
        """Return the choices of each expert of a layer in the latest window."""
        _, _, places = self._layers[layer]
        found: Loads = places.loads.numpy() - self._counted[0][layer]
        return found

    def _log(self) -> None:
        """Note how even the latest window is; rank 0 logs it."""
        self._weigh()
        if self._group.rank == 0:
            logger.info("Balance of experts over the latest steps: %.3f (1 is even).", self.value)

    def _weigh(self) -> None:
        size = self._group.size
        values = [
            balance_of(rank_loads(places.experts, self._loads(layer), size))
            for layer, (_, _, places) in enumerate(self._layers)
        ]
        self.value = sum(values) / len(values)

    def _decide(self, layer: int) -> None:
        """Choose the moves of a layer, from the counts of rank 0: those of a rank whose step failed may differ."""
        if layer == 0:
            self._weigh()
        _, _, places = self._layers[layer]
        loads = np.frombuffer(self._group.share(self._loads(layer).tobytes()), np.float64)
        moves = chosen_moves(places.experts, loads, self._group.size, max(places.held.per_rank // 2, 1))
        self._moves.extend((layer, move) for move in moves)

    def _move(self, layer: int, move: Move) -> None:
        """Carry out a move on all ranks or on none."""
        index, mlp, places = self._layers[layer]
        per_rank, rank = places.held.per_rank, self._group.rank
        mine = [(slot - rank * per_rank, expert) for slot, expert in move if slot // per_rank == rank]
        answer, built = DONE, []
        try:
            built = [(slot, *self._read(index, expert)) for slot, expert in mine]
            if not all(mlp.fits(gate_up, down) for _, gate_up, down in built):
                raise CoreError("its weights have another form than those in its place")
        except Exception as error:
            answer = FAILED
            logger.warning("Expert %d of layer %d stays where it is: %s", mine[0][1], index, error)
        if FAILED in self._group.exchange(answer):
            self._moves.clear()
            self._undecided.clear()
            return
        for slot, gate_up, down in built:
            self._free += mlp.replace(slot, gate_up, down)
        experts = list(places.experts)
        for slot, expert in move:
            experts[slot] = expert
        places.put(experts)
        self.num_moves += len(move)

    def _read(self, index: int, expert: int) -> tuple[LinearKernel, LinearKernel]:
        """Return both kernels of an expert, from the checkpoint's files. index: of the block."""
        checkpoint, packing = self._checkpoint, self._packing
        assert isinstance(checkpoint.spec, DecoderSpec), "layers of transformers have no ranks"
        parts = checkpoint.spec.expert_linears(index)[expert]
        names = sorted(packing.reads((*parts.gate_up, *parts.down)))
        tensors = {name: tensor.clone() for name, tensor in checkpoint.loader.iter(checkpoint.manifest, names)}
        gate_up, down = (packing.linear(side, tensors).single for side in (parts.gate_up, parts.down))
        if gate_up is None or down is None:
            raise CoreError("its gate and up are two kernels")
        return gate_up, down

    def _room(self, nbytes: int) -> Tensor:
        """Return memory of a former expert, or new memory."""
        for place, memory in enumerate(self._free):
            if len(memory) == nbytes:
                return self._free.pop(place)
        room = torch.empty(nbytes + PAGE, dtype=torch.uint8)
        first = -room.data_ptr() % PAGE
        return room[first : first + nbytes]
