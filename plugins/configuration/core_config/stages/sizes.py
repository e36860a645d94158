"""The stage that settles sizes: weights, KV cache, and a context length that fits.

Owns: the choice of arguments and facts for the memory plan, and the formats that it assumes. Never does: count bytes
(`core_config.stages.memory` does). Called by: resolve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec

from core.api.errors import UserError
from core.api.specs import KV_TYPES, AttentionSpec, KVGroup, MixerSpec, StateSpec
from core.api.step_limits import StepLimits
from core.plugin.hookspecs import Device
from core_config.engine import scheduler_config
from core_config.experts import copies_bytes, outputs_bytes, placement_of
from core_config.media import GIB
from core_config.ranks import part_of, stages_in
from core_config.rules.context import LARGEST_PIECE
from core_config.stages.adapters import planned_adapter
from core_config.stages.attempt import Attempt
from core_config.stages.attention import settled_state_dtype, skipped_dtypes
from core_config.stages.checkpoint import Checkpoint
from core_config.stages.chosen import Chosen
from core_config.stages.forms import Form, forms_of
from core_config.stages.limits import fit
from core_config.stages.memory import (
    NO_LIMITS,
    MemoryPlan,
    chosen_keys_bytes,
    human_bytes,
    kv_groups,
    workspace_bytes,
)
from core_config.stages.offload import PlannedOffload, planned_offload
from core_config.stages.settings import Settings
from core_config.stages.step_limits import LOGITS_BYTES, draft_limits, step_limits
from core_config.stages.weights import counter_of, heads_weights, planned_weights, proposer_weights, quantization_plan
from core_runtime.specs.decoder_spec import DecoderSpec
from core_runtime.specs.module_spec import ModelSpec
from core_runtime.specs.stages import mixer_ranges

STEPS_HELD = 2
"""Number of steps that hold blocks at a time: one is planned while the other is computed."""


def plan_memory(attempt: Attempt, checkpoint: Checkpoint, spec: ModelSpec) -> MemoryPlan:
    """Return the plan, with the longest context that fits. Raises UserError."""
    settings, facts, chosen, draft = attempt.settings, attempt.facts, attempt.chosen, attempt.draft
    block_size, ranks = settings["block_size"], settings["tensor_parallel_size"]
    scheduler = scheduler_config(settings)
    placement = placement_of(settings)
    part = part_of(spec, ranks, placement)
    mixers = part.mixers
    if draft is not None:
        mixers = mixers + draft.mixers
    layer_dtypes = _layer_dtypes(settings, spec, len(mixers))
    # Tokens of a block that a rank stores. A rule has refused more ranks than a block has tokens.
    piece = max(1, block_size // settings["decode_context_parallel_size"])
    groups = _planned_groups(attempt, spec, mixers, layer_dtypes, piece)
    weights = planned_weights(settings, chosen, checkpoint.manifest, spec)
    if ranks > 1:
        weights += copies_bytes(spec, placement, weights, settings["dtype"])
    if draft is not None and isinstance(spec, DecoderSpec):
        spec = msgspec.structs.replace(spec, taps=draft.spec.taps)
    limits = step_limits(scheduler, spec.vocab_size, _logits_bytes(attempt))
    proposer, of_draft, workspace = _planned_draft(attempt, checkpoint, limits)
    workspace += _workspace(attempt, spec, limits)
    workspace += ranks * _all_chosen_keys(attempt, mixers, layer_dtypes, limits, of_draft)
    workspace += ranks * (outputs_bytes(spec, placement, limits) if ranks > 1 else 0)
    workspace += ranks * (_gathered_bytes(settings, mixers, piece) if piece < block_size else 0)
    offload = _planned_offload(attempt, checkpoint, spec)
    facts.offloaded_bytes = offload.host
    facts.weights_bytes = (weights - offload.host + offload.slots + proposer) // settings["nnodes"]
    facts.workspace_bytes = workspace
    adapter = planned_adapter(settings, chosen, spec, part)
    num_adapters = settings["max_cpu_loras"] if settings["enable_lora"] else 0
    facts.adapters_bytes = adapter * num_adapters
    if facts.is_api_server:  # the engine server makes the plan
        length = settings["max_model_len"]
        return MemoryPlan(
            weights, facts.block_bytes, 0, block_size, workspace, length, groups, layer_dtypes, limits=limits
        )
    attempt.run_rules("memory")
    plan = MemoryPlan(
        weights,
        facts.block_bytes,
        _num_blocks(attempt, mixers, scheduler.max_step_tokens),
        block_size,
        workspace,
        groups=groups,
        layer_dtypes=layer_dtypes,
        readers=len(_lenders(spec, attempt)),
        max_step_tokens=scheduler.max_step_tokens,
        proposer=proposer,
        limits=limits,
        draft_limits=of_draft,
        adapter=adapter,
        num_adapters=num_adapters,
        tower=facts.tower_bytes,
        tower_rows=int(settings["mm_encoder_cache_gb"] * GIB) if facts.tower_bytes else 0,
        offloaded=offload.host,
        slots=offload.slots,
        offload=offload.config,
    )
    attempt.warnings += fit(settings, plan, settings.given().get("max_model_len"))
    return replace(plan, max_model_len=settings["max_model_len"])


def _all_chosen_keys(
    attempt: Attempt, mixers: Sequence[MixerSpec], layer_dtypes: Sequence[str], limits: StepLimits, of_draft: StepLimits
) -> int:
    """Return the bytes of chosen keys of a rank, of the target and of its draft. mixers: of both, the target's first."""
    draft = attempt.draft
    kept = list(layer_dtypes) or [attempt.settings["kv_cache_dtype"]] * len(mixers)
    of_model = len(mixers) - (0 if draft is None else len(draft.mixers))
    found = _chosen_keys_bytes(attempt.chosen, mixers[:of_model], kept[:of_model], limits)
    if draft is not None and draft.decoder is not None:
        found += _chosen_keys_bytes(draft.chosen, mixers[of_model:], kept[of_model:], of_draft)
    return found


def _planned_groups(
    attempt: Attempt, spec: ModelSpec, mixers: Sequence[MixerSpec], layer_dtypes: Sequence[str], piece: int
) -> tuple[KVGroup, ...]:
    """Return the groups of layers whose blocks have one table, and note the bytes of a block of all of them.

    layer_dtypes: of the stored keys; empty: all are --kv-cache-dtype. piece: tokens of a block that a rank stores.
    """
    settings, facts = attempt.settings, attempt.facts
    stages = mixer_ranges(spec, stages_in(spec, settings["pipeline_parallel_size"])) if attempt.draft is None else ()
    groups, of_rank = kv_groups(
        mixers,
        piece,
        layer_dtypes or [settings["kv_cache_dtype"]] * len(mixers),
        hybrid=not settings["disable_hybrid_kv_cache_manager"],
        strided=_all_declare_strides(attempt),
        drafts=scheduler_config(settings).num_speculative_tokens > 0,
        state_dtype=settled_state_dtype(settings),
        stages=stages,
        lenders=_lenders(spec, attempt),
    )
    # A block has a part on each rank; those of this host count.
    facts.block_bytes = -(-of_rank * settings["tensor_parallel_size"] // settings["nnodes"])
    return groups


def _lenders(spec: ModelSpec, attempt: Attempt) -> dict[int, int]:
    """Return the mixers of model and draft, numbered through, that store nothing; see `DecoderShape.lenders`."""
    found = dict(spec.lenders)
    if attempt.draft is not None and attempt.draft.decoder is not None:
        first = len(spec.mixers)
        found |= {first + index: first + lender for index, lender in attempt.draft.decoder.lenders.items()}
    return found


def _planned_offload(attempt: Attempt, checkpoint: Checkpoint, spec: ModelSpec) -> PlannedOffload:
    """Return what lies in host memory. Raises UserError."""
    if not isinstance(spec, DecoderSpec):  # layers of transformers keep their weights, as a rule reports
        return PlannedOffload()
    settings = attempt.settings
    return planned_offload(settings, spec, counter_of(settings, attempt.chosen, checkpoint.manifest))


def _planned_draft(attempt: Attempt, checkpoint: Checkpoint, limits: StepLimits) -> tuple[int, StepLimits, int]:
    """Return the bytes of the proposer's weights, the limits of its steps, and the bytes of their workspace."""
    settings, draft = attempt.settings, attempt.draft
    weights = proposer_weights(settings, attempt.chosen, checkpoint.manifest)
    if draft is None:
        return weights, NO_LIMITS, 0
    if draft.decoder is None:
        return weights or heads_weights(draft.manifest, settings["dtype"]), NO_LIMITS, 0
    weights += planned_weights(draft.settings, draft.chosen, draft.manifest, draft.decoder)
    # A pass begins with the token that the step has drawn; where it gives all drafts, their places are computed in it too.
    tokens_ahead = 1 if draft.spec.parallel_token_id is None else scheduler_config(settings).num_speculative_tokens
    of_draft = draft_limits(limits, draft.decoder.vocab_size, tokens_ahead, _logits_bytes(attempt))
    return weights, of_draft, _workspace(attempt, draft.decoder, of_draft)


def planned_forms(attempt: Attempt, checkpoint: Checkpoint, spec: ModelSpec, device: Device) -> list[Form]:
    """Return the forms of the matrices of the model, then those of its draft."""
    settings, draft = attempt.settings, attempt.draft
    plan = quantization_plan(settings, attempt.chosen, checkpoint.manifest)
    found = forms_of(spec, plan, settings["dtype"], device)
    if draft is not None and draft.decoder is not None:
        plan = quantization_plan(draft.settings, draft.chosen, draft.manifest)
        found += forms_of(draft.decoder, plan, draft.settings["dtype"], device)
    return found


def _num_blocks(attempt: Attempt, mixers: Sequence[MixerSpec], max_step_tokens: int) -> int:
    """Return the number of blocks: the user's, or what the memory holds, for an encoder at most what its steps use."""
    given: int | None = attempt.settings["num_gpu_blocks_override"]
    if given is not None:
        return given
    held: int = attempt.settings["kv_cache_memory_bytes"] // attempt.facts.block_bytes
    return min(held, _blocks_of_steps(attempt, max_step_tokens)) if _is_encoder(mixers) else held


def _gathered_bytes(settings: Settings, mixers: Sequence[MixerSpec], piece: int) -> int:
    """Return the bytes in which a rank gathers the keys and values of one layer: those of the longest sequence from all ranks.

    Twice, since the records that ranks send and receive in place of keys are at most as many bytes each.
    Raises UserError for a layer whose pieces are too large to exchange.
    """
    kept = KV_TYPES[settings["kv_cache_dtype"]]
    layers = {piece * kept.token_bytes(mixer) for mixer in mixers if not isinstance(mixer, StateSpec)}
    if max(layers) > LARGEST_PIECE:
        raise UserError(
            f"--cp-kv-cache-interleave-size {piece}: so many tokens of a layer have {human_bytes(max(layers))}, expected at "
            f"most {human_bytes(LARGEST_PIECE)}; lower it, or choose a smaller --kv-cache-dtype."
        )
    drafts = scheduler_config(settings).num_speculative_tokens
    blocks: int = -(-(settings["max_model_len"] + drafts + 1) // settings["block_size"]) + 1
    ranks: int = settings["tensor_parallel_size"]
    return 2 * blocks * ranks * sum(layers)


def _layer_dtypes(settings: Settings, spec: ModelSpec, num_layers: int) -> tuple[str, ...]:
    """Return the storage type of each layer's keys and values, a draft's behind the model's; empty: all have the cache's.

    Raises ConfigError.
    """
    own = skipped_dtypes(settings, spec)
    others = [settings["kv_cache_dtype"]] * (num_layers - len(own))
    return (*own, *others) if own else ()


def _all_declare_strides(attempt: Attempt) -> bool:
    """Whether every attention backend, the draft's too, reads layers whose blocks lie apart."""
    chosen = [attempt.chosen] if attempt.draft is None else [attempt.chosen, attempt.draft.chosen]
    backends = [
        manifest
        for one in chosen
        for stage, choice in one.stages.items()
        if stage.startswith("attention.") and stage != "attention.state"
        for manifest in choice.manifests
    ]
    return all(manifest.spec.capabilities.get("strided", False) for manifest in backends)


def _is_encoder(mixers: Sequence[MixerSpec]) -> bool:
    """Whether every text is computed in one step, and nothing of it is cached."""
    return all(isinstance(mixer, AttentionSpec) and not mixer.causal for mixer in mixers)


def _blocks_of_steps(attempt: Attempt, max_step_tokens: int) -> int:
    """Return the blocks for all sequences of an encoder, whose last ones may be partly filled, plus the padding
    block.
    """
    settings = attempt.settings
    block_size: int = settings["block_size"]
    full = -(-max_step_tokens // block_size)
    partial: int = settings["max_num_seqs"]
    return STEPS_HELD * (full + partial) + 1


def _logits_bytes(attempt: Attempt) -> int:
    """Return the budget of a step's float32 logits in bytes: the platform's own, if it declares one."""
    declared: int | None = attempt.facts.capability("logits_bytes")
    return LOGITS_BYTES if declared is None else declared


def _workspace(attempt: Attempt, spec: ModelSpec, limits: StepLimits) -> int:
    """Return the bytes of the largest step's buffers."""
    settings = attempt.settings
    between = attempt.facts.capability("activation_dtype") or settings["dtype"]
    ranks, told = settings["tensor_parallel_size"], settings["enable_return_routed_experts"]
    return workspace_bytes(spec, limits, between, ranks=ranks, told=told)


def _chosen_keys_bytes(chosen: Chosen, mixers: Sequence[MixerSpec], dtypes: Sequence[str], limits: StepLimits) -> int:
    """Return the bytes in which the backend of latent layers gathers the keys that an index chooses; 0 where it does not."""
    choice = chosen.stages.get("attention.latent")
    limit = None if choice is None else choice.manifest.spec.capabilities.get("gathered_bytes")
    return chosen_keys_bytes(mixers, dtypes, limits.tokens, limit) if limit else 0
