"""The draft of a model, ready to run beside it.

Owns: how the configured draft becomes a model instance, and its passes. Never does: choose plugins, or draw a token.
Called by: the worker, once.
"""

from __future__ import annotations

import logging

import msgspec

from core.api.config import EngineConfig
from core.executor.batch import PersistentBatch
from core.executor.device import Device
from core.executor.draft_pass import DraftPass
from core.executor.draft_progress import DraftProgress
from core.executor.forward import ForwardPass, recorder_of
from core.executor.instance import ModelInstance, build, max_step_tokens, open_checkpoint
from core.executor.step_buffers import StepBuffers
from core.models.logit_rows import logit_rows
from core.plugin.contracts import Uploads
from core.plugin.table import PluginTable
from core.sampling import Sampler
from core.sampling.draft_tree import DraftTree

logger = logging.getLogger(__name__)


def own_config(config: EngineConfig) -> EngineConfig:
    """The configuration of the draft by itself, as if it were the model."""
    draft = config.draft
    assert draft is not None, "there is no draft"
    return msgspec.structs.replace(config, model=draft.model, plugins=draft.plugins, weights_file=None, draft=None)


def build_draft(config: EngineConfig, device: Device, plugins: PluginTable) -> ModelInstance:
    """Read the draft's weights and make its model. config: of the main model."""
    own = own_config(config)
    dtype = device.runtime.activation_dtype(own.model.dtype)
    checkpoint = open_checkpoint(own, plugins, dtype)
    rows = logit_rows(checkpoint.spec.vocab_size, own.scheduler.max_num_seqs, 0)
    return build(own, checkpoint, device, plugins, max_logits=rows)


def draft_pass(
    config: EngineConfig,
    draft: ModelInstance,
    device: Device,
    batch: PersistentBatch,
    sampler: Sampler,
    *,
    padding: bool,
    verifies_trees: bool = False,
) -> DraftPass:
    """The passes of a draft whose cache is bound. config: of the main model. batch, sampler: of the same.

    padding: whether attention takes padded rows and sequences.
    verifies_trees: whether the main model can verify a tree.
    """
    own = own_config(config)
    model = draft.model
    runtime = device.runtime
    num_slots, max_blocks = batch.buffers.block_tables[0].array.shape
    most_tokens = max_step_tokens(config)
    buffers = StepBuffers(
        most_tokens,
        num_slots,
        max_blocks,
        model.max_logits,
        runtime.device,
        len(batch.buffers.block_tables),
        runtime if isinstance(runtime, Uploads) else None,
    )
    recorder = recorder_of(model, runtime, buffers, padding=padding, eager=own.model.enforce_eager)
    forward = ForwardPass(model, buffers, recorder, draft.groups)
    progress = DraftProgress(
        batch,
        config.scheduler.num_speculative_tokens,
        most_tokens,
        own.model.max_model_len,
        keeps_drafts=True,
    )
    shape = config.draft.tree if config.draft is not None else ()
    tree = None
    if shape and verifies_trees:
        tree = DraftTree(shape)
    elif shape:
        logger.warning(
            "--speculative-config.speculative_token_tree: drafts are verified as chains, because the attention of some layers "
            "or the rule of acceptance takes no trees."
        )
    return DraftPass(forward, batch, sampler, progress, tree)
