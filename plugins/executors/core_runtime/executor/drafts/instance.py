"""The draft model of a target, ready to run next to it.

Owns: how the configured draft becomes a model instance, and its passes. Never does: choose plugins, or draw a token.
Called by: the worker, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import msgspec

from core.api.config import EngineConfig
from core.plugin.table import PluginTable
from core_runtime.contracts import DraftHeads, Loader, Uploads
from core_runtime.executor.device import Device
from core_runtime.executor.drafts.heads import HeadsPass
from core_runtime.executor.drafts.passes import DraftPass
from core_runtime.executor.drafts.progress import DraftProgress
from core_runtime.executor.drafts.states import HiddenStates
from core_runtime.executor.drafts.vocabulary import SpreadLogits
from core_runtime.executor.forward import ForwardPass
from core_runtime.executor.instance import ModelInstance, build, shared_parts
from core_runtime.executor.plugin_loading import load_plugin
from core_runtime.executor.reloading.checkpoint import Checkpoint, open_checkpoint
from core_runtime.executor.steps.batch import PersistentBatch
from core_runtime.executor.steps.buffers import StepBuffers
from core_runtime.executor.steps.recordable import recorder_of
from core_runtime.models.decoder import Decoder
from core_runtime.models.decoder_weights import DecoderWeights
from core_runtime.models.fallback.model import ModuleModel
from core_runtime.models.tensors.borrowing import borrow, borrowing_spec
from core_runtime.models.tensors.draft_names import draft_weight_map
from core_runtime.models.tensors.part_store import PartStore
from core_runtime.sampling import Sampler
from core_runtime.sampling.drafts.draft_tree import DraftTree
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.draft_config import DraftConfig, draft_of
from core_runtime.specs.draft_spec import DraftSpec, draft_decoder
from core_runtime.specs.module_spec import ModelSpec

logger = logging.getLogger(__name__)


def own_config(config: EngineConfig) -> EngineConfig:
    """Return the draft's configuration, as if it were the only model."""
    draft = draft_of(config)
    assert draft is not None, "there is no draft"
    return msgspec.structs.replace(
        config,
        model=draft.model,
        plugins=draft.plugins,
        limits=draft.limits,
        weights_file=None,
        draft=None,
    )


def build_draft(
    config: EngineConfig,
    draft: DraftConfig,
    target: ModelInstance,
    device: Device,
    plugins: PluginTable,
    store: PartStore | None = None,
    wrap: Callable[[Loader], Loader] | None = None,
) -> ModelInstance:
    """Read the draft's weights and make its model. config: of the target's engine. store: see `build`. wrap: see
    `open_checkpoint`.
    """
    own = own_config(config)
    drafts = draft.spec
    if drafts.names:
        checkpoint = _open_named(own, draft, target.spec, plugins, wrap)
    else:
        checkpoint = open_checkpoint(own, plugins, device.runtime.activation_dtype(own.model.dtype), wrap)

    def finish(spec: DecoderSpec, weights: DecoderWeights) -> tuple[DecoderSpec, DecoderWeights]:
        """Add the parts that the draft shares with the target, such as embedding and head."""
        shape, held = target.spec, target.model.weights
        if not isinstance(shape, DecoderSpec) or not isinstance(held, DecoderWeights):
            return spec, weights
        return borrowing_spec(spec, shape, drafts), borrow(weights, held, drafts)

    return build(own, checkpoint, device, plugins, finish=finish, store=store)


def _open_named(
    own: EngineConfig,
    draft: DraftConfig,
    target: ModelSpec,
    plugins: PluginTable,
    wrap: Callable[[Loader], Loader] | None,
) -> Checkpoint:
    """Open a draft's checkpoint whose tensor names the proposer gave; no tensor is read yet. own: from `own_config`."""
    loader: Loader = load_plugin(own, plugins, "loader", own.plugins.loader)
    if wrap is not None:
        loader = wrap(loader)
    manifest = loader.resolve(own.model.model)
    manifest = msgspec.structs.replace(manifest, config=own.model.hf_config)
    shape = draft.spec
    spec = draft_decoder(shape, target)
    names = draft_weight_map(manifest, shape, spec, in_target=draft.in_target)
    return Checkpoint(names.loader(loader), names.manifest, spec)


def draft_pass(
    config: EngineConfig,
    draft: ModelInstance,
    target: ModelInstance,
    device: Device,
    batch: PersistentBatch,
    sampler: Sampler,
    *,
    padding: bool,
    verifies_trees: bool = False,
) -> DraftPass:
    """Make the passes of a draft whose cache is bound. config: of the target's engine. batch, sampler: the target's.

    padding: whether attention accepts padded rows and sequences.
    verifies_trees: whether the target can verify a tree.
    """
    own = own_config(config)
    model = draft.model
    runtime = device.runtime
    num_slots, max_blocks = batch.buffers.block_tables[0].tensor.shape
    buffers = StepBuffers(
        own.limits,
        max_blocks,
        runtime.device,
        len(batch.buffers.block_tables),
        runtime if isinstance(runtime, Uploads) else None,
        beside=batch.buffers,
        state_blocks=batch.buffers.state_blocks,
    )
    rows_each = config.scheduler.rows_per_sequence
    # The draft has a recorder of its own: recordings are tied to the buffers, and its buffers are not the target's.
    recorder = recorder_of(
        model,
        runtime,
        buffers,
        padding=padding,
        eager=own.model.enforce_eager,
        compilation=config.compilation,
        rows_each=rows_each,
    )
    forward = ForwardPass(model, buffers, recorder, draft.groups, rows_each=rows_each, ragged=padding)
    described = draft_of(config)
    assert described is not None, "there is no draft"
    shape = described.spec
    states = _states(shape, draft, target, num_slots)
    progress = DraftProgress(
        batch,
        config.scheduler.num_speculative_tokens,
        # The tokens of the target's step, and the newest token of each sequence.
        config.limits.tokens + num_slots,
        own.model.max_model_len,
        keeps_drafts=states is None and shape.parallel_token_id is None,
        takes_states=states is not None,
    )
    tree = _tree(described.tree, verifies_trees=verifies_trees)
    spread = _spread(draft.model)
    return DraftPass(forward, batch, sampler, progress, states, spread, shape.parallel_token_id, tree)


def _tree(widths: tuple[int, ...], *, verifies_trees: bool) -> DraftTree | None:
    """Return the requested draft tree; None: drafts are chains."""
    if not widths:
        return None
    if verifies_trees:
        return DraftTree(widths)
    logger.warning(
        "--speculative-config.speculative_token_tree: drafts are verified as chains, because the attention of some layers "
        "or the rule of acceptance takes no trees."
    )
    return None


def heads_pass(
    config: EngineConfig, target: ModelInstance, plugins: PluginTable, batch: PersistentBatch, sampler: Sampler
) -> HeadsPass:
    """Make the calls of the proposer's own draft heads. config: of the target's engine."""
    own = own_config(config)
    name = config.plugins.speculative
    assert name is not None, "heads are a proposer's"
    loader: Loader = load_plugin(own, plugins, "loader", own.plugins.loader)
    manifest = loader.resolve(own.model.model)
    manifest = msgspec.structs.replace(manifest, config=own.model.hf_config)
    options = {**shared_parts(target.model.weights), "loader": loader}
    facts = manifest.facts()
    heads: DraftHeads = load_plugin(
        config, plugins, "speculative", name, options=options, manifest=manifest, facts=facts
    )
    draft = draft_of(config)
    has_taps = draft is not None and bool(draft.spec.taps)
    taps = target.model.workspace.buffer("taps") if has_taps else None
    return HeadsPass(heads, name, batch, sampler, taps, sampler.vocab_size)


def _states(shape: DraftSpec, draft: ModelInstance, target: ModelInstance, num_slots: int) -> HiddenStates | None:
    """Return the target's hidden states for a draft that takes them; None for any other."""
    own, other = draft.model, target.model
    if not isinstance(own, Decoder) or not isinstance(other, Decoder) or own.draft_entry is None:
        return None
    return HiddenStates(other, own, shape.carries, num_slots)


def _spread(model: Decoder | ModuleModel) -> SpreadLogits | None:
    """Return the map from the draft's smaller vocabulary to the target's; None if they are the same."""
    if not isinstance(model, Decoder) or model.weights.head is None or model.weights.head.token_ids is None:
        return None
    return SpreadLogits(model.weights.head.token_ids, model.spec.vocab_size, model.max_logits)
