"""The choice of an attention backend for each layer kind.

Owns: `--attention-backend` as names by layer kind, and one query a kind of layer. Never does: rank candidates.
Called by: choices.
"""

from __future__ import annotations

from collections.abc import Sequence

from core.api.errors import UserError, nearest
from core.api.specs import AttentionQuery, MixerSpec, StateQuery, StateSpec
from core.plugin.hookspecs import Device
from core.plugin.registry import PluginRegistry
from core_config.selection import select_attention
from core_config.selection.ranking import Choice
from core_config.stages.chosen import ChosenPlatform
from core_config.stages.settings import Settings
from core_config.stages.waivers import wanted_promise
from core_runtime.specs.kv_types import layer_dtypes, state_dtype
from core_runtime.specs.module_spec import ModelSpec

LAYER_KINDS = ("full", "sliding", "latent", "state")


def attention_names(text: str | None) -> dict[str, str]:
    """Return `NAME` or `full=NAME,sliding=NAME,...` as {layer kind: name}. Raises UserError."""
    if text is None or text.lower() == "auto":
        return {}
    if "=" not in text:
        return dict.fromkeys(LAYER_KINDS, text)
    names: dict[str, str] = {}
    for part in text.split(","):
        before, _, after = part.partition("=")
        kind = before.strip()
        name = after.strip()
        if kind not in LAYER_KINDS or not name:
            by_kind = ",".join(f"{known}=NAME" for known in LAYER_KINDS)
            hint = nearest(kind, LAYER_KINDS)
            raise UserError(f"--attention-backend {text}: expected NAME, or {by_kind}.{hint}")
        names[kind] = name
    return names


def choose_attention(
    settings: Settings,
    registry: PluginRegistry,
    mixers: Sequence[MixerSpec],
    platform: ChosenPlatform,
    dtypes: Sequence[str] = (),
    *,
    spans: bool = False,
) -> dict[str, Choice]:
    """Return one choice for each layer kind of the model, by `attention.KIND`. Raises UserError.

    dtypes: storage type of each mixer's keys and values; empty: all have that of the cache.
    spans: see `AttentionQuery`.
    """
    named = attention_names(settings["attention_backend"])
    wanted = platform.wishes.get("attention_backend", ())
    row = platform.manifest.row
    found: dict[str, Choice] = {}
    queries: list[AttentionQuery | StateQuery] = []
    for index, mixer in enumerate(mixers):
        query = query_of(settings, mixer, platform.device, dtypes[index] if dtypes else None)
        if query in queries:
            continue
        queries.append(query)
        promise = wanted_promise(settings, mixer.kind)
        choice = select_attention(registry, named.get(mixer.kind), query, wanted, row.name, row.distribution, promise)
        stage = f"attention.{mixer.kind}"
        before = found.setdefault(stage, choice)
        if before.selection.chosen != choice.selection.chosen:
            pair = f"{before.selection.chosen[0]} and {choice.selection.chosen[0]}"
            raise UserError(f"{stage}: the layers need different backends, {pair}; name one that fits all.")
    return found


def query_of(
    settings: Settings, mixer: MixerSpec, device: Device, dtype: str | None = None, *, spans: bool = False
) -> AttentionQuery | StateQuery:
    """Return the query whether a backend serves a layer. dtype: storage type of its keys and values; None: the cache's."""
    if isinstance(mixer, StateSpec):
        return StateQuery(mixer, device.name, settled_state_dtype(settings))
    dtype = dtype or settings["kv_cache_dtype"]
    return AttentionQuery(mixer, device.name, dtype, settings["block_size"], profile=device.profile, spans=spans)


def settled_state_dtype(settings: Settings) -> str:
    """Return the storage type of states."""
    by_chance = settings["enable_mamba_cache_stochastic_rounding"]
    return state_dtype(settings["mamba_cache_dtype"], settings["mamba_ssm_cache_dtype"], by_chance=by_chance)


def skipped_dtypes(settings: Settings, spec: ModelSpec) -> tuple[str, ...]:
    """Return the storage type of each of the model's layers; empty where all have the cache's. Raises ConfigError."""
    skipped = settings["kv_cache_dtype_skip_layers"] or ()
    return layer_dtypes(spec, settings["kv_cache_dtype"], skipped, settings["dtype"])
