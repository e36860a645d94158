"""The models of a worker: the target, and the model of its drafts.

Owns: the part of the target that a worker builds, and where its kernels come from. Never does: allocate a cache.
Called by: the worker, at its start and for new weights.
"""

from __future__ import annotations

import dataclasses

from core.api.config import EngineConfig
from core.api.errors import UserError
from core.plugin.table import PluginTable
from core_runtime.executor.device import Device
from core_runtime.executor.drafts.instance import build_draft
from core_runtime.executor.instance import ModelInstance, build
from core_runtime.executor.ranks import Ranks, Reduce
from core_runtime.executor.reloading.checkpoint import Checkpoint
from core_runtime.executor.saved_weights import SpilledWeights
from core_runtime.models.tensors.loading import WHOLE
from core_runtime.models.tensors.part_store import PartStore
from core_runtime.specs.draft_config import draft_of

Stores = tuple[PartStore | None, PartStore | None]
"""Stores of the parts of a model and of its draft."""


def build_models(
    config: EngineConfig,
    checkpoint: Checkpoint,
    device: Device,
    plugins: PluginTable,
    ranks: Ranks | None,
    saved: SpilledWeights | None,
    stores: Stores = (None, None),
) -> list[ModelInstance]:
    """Build the target and its draft, without a cache.

    ranks: the worker's place among several; None: it computes the whole.
    saved: gives the target's kernels if its file has them, and records them; None: they come from tensors alone.
    stores: see `build`; one for each of the two.
    """
    own, drafts = stores
    recorder = None
    # A converted model is restored faster from its own directory.
    if saved is not None and checkpoint.prepared is None:
        recorder = saved.note
        checkpoint = dataclasses.replace(checkpoint, prepared=saved.find())
    if ranks is not None and checkpoint.prepared is not None:
        raise UserError(
            f"{config.model.model} is a converted model, of whole layers; use one rank, or the checkpoint itself."
        )
    model = build(
        config,
        checkpoint,
        device,
        plugins,
        WHOLE if ranks is None else ranks.part_of(checkpoint.spec),
        reduce=Reduce(ranks.communicator) if ranks is not None and ranks.divides_layers else None,
        recorder=recorder,
        store=own,
        around=None if ranks is None else ranks.around,
    )
    if ranks is not None:
        ranks.join(model.model, checkpoint.spec.vocab_size)
    draft = draft_of(config)
    if draft is None or draft.spec.decoder is None:
        return [model]
    return [model, build_draft(config, draft, model, device, plugins, drafts)]
