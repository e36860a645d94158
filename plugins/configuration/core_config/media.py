"""The settings of media, from the arguments and the checkpoint.

Owns: `media_config`, and why a model's media are not served. Never does: import transformers, or open a picture. Called by:
`core_config.engine`, the rules about media, what prepares requests.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import msgspec

from core.api.config import PluginChoices
from core.api.pooling import PoolingConfig
from core_config.adapters import names_by_modality
from core_config.stages.memory import ITEM_BYTES
from core_config.stages.settings import Settings
from core_media.config import AUDIO, IMAGE, NOUNS, VIDEO, MediaConfig, Place
from core_media.families import (
    AROUND_ROWS,
    CLOSINGS,
    ELSEWHERE,
    OF_TIMM,
    OF_TORCHVISION,
    OPTIONAL,
    PIXTRAL,
    SHOWN,
    SOUNDS,
    THREE_POSITIONS,
    UNSERVED,
    VIDEOS,
    placeholder_of,
    two_sided,
    unread,
)
from core_media.sound.config import DECODER, ENCODER, MODEL_TYPE, alignment_heads, missing, sound_config
from core_runtime.models.families.wrappers import PROJECTOR, is_wrapper, other_module, text_config
from core_runtime.models.rope import rope_spec
from core_runtime.specs.checkpoint import CheckpointManifest

GIB: Final = 1 << 30
DEEPSTACK: Final = (8, 16, 24)
"""Taps of Qwen3-VL's tower where its configuration does not say them."""
TOWER_CONFIGS: Final[Mapping[str, str]] = MappingProxyType(
    {IMAGE: "vision_config", VIDEO: "vision_config", AUDIO: "audio_config"}
)
"""Modality → key of the configuration of its tower."""
PROCESSOR: Final = "processor"
"""Kind of the plugins that process media."""
DEFAULTS: Final[Mapping[str, int]] = MappingProxyType({IMAGE: 16, AUDIO: 16, VIDEO: 4})
"""Most items of each modality in a prompt."""

OF_SOUNDS: Final = (
    ("enable_prefix_caching", False, "a window's prompt is short, and a copy of its state is large"),
    ("logprobs_mode", "processed_logprobs", "texts are judged by the probabilities behind the rules of times"),
)
"""Arguments that a model of sounds has by itself: name, value, reason."""


def media_config(
    settings: Settings, path: str, manifest: CheckpointManifest, plugins: PluginChoices, pooling: PoolingConfig | None
) -> MediaConfig | None:
    """Return the settings; None where no medium is served. The rules have checked the arguments.

    plugins: the chosen ones, among them the processor where a medium is served.
    """
    processor = next((row for row in plugins.table if row.kind == PROCESSOR), None)
    if processor is None or why_not(settings, path, manifest) or why_not_pooled(settings, pooling):
        return None
    config = manifest.config
    arguments = plugins.arguments.get(f"{PROCESSOR}.{processor.name}", {})
    if transcribes(manifest):
        found = _transcribing(settings, path, config)
        return msgspec.structs.replace(found, processor=processor, processor_arguments=arguments)
    places, refusals = _places(settings, config)
    pictures = places.pop(IMAGE, Place("", 0))
    sees = two_sided(str(config["model_type"]), text_config(config))
    return MediaConfig(
        model=path,
        model_type=str(config["model_type"]),
        placeholder=pictures.placeholder,
        token_id=pictures.token_id,
        closing=pictures.closing,
        others=places,
        refusals=refusals,
        limits=item_limits(settings["limit_mm_per_prompt"]),
        io_kwargs=settings["media_io_kwargs"] or {},
        max_seconds=settings["max_audio_seconds"],
        max_frames=settings["max_video_frames"],
        pruning=settings["video_pruning_rate"] or 0.0,
        max_image_pixels=settings["max_image_pixels"],
        row_cache_bytes=int(settings["mm_encoder_cache_gb"] * GIB),
        processor_cache_bytes=int(settings["mm_processor_cache_gb"] * GIB),
        num_workers=settings["renderer_num_workers"],
        **_shared(settings),
        processor_kwargs=settings["mm_processor_kwargs"] or {},
        projector=config.get(PROJECTOR, {}),
        domains=tuple(domain.lower() for domain in settings["allowed_media_domains"] or ()),
        local_path=_absolute(settings["allowed_local_media_path"]),
        **_given_rows(settings, config),
        two_sided=sees,
        max_span=_most_of_a_step(settings),
        # Beyond its windows, a prompt of PaliGemma 2 would see itself as a whole in transformers, and by windows here.
        window=int(text_config(config).get("sliding_window") or 0) if sees == "prompt" else 0,
        processor=processor,
        processor_arguments=arguments,
        adapts_tower=settings["enable_lora"] and settings["enable_tower_connector_lora"],
        adapters=names_by_modality(settings),
    )


def why_not_pooled(settings: Settings, pooling: PoolingConfig | None) -> str:
    """Return why prompts with media are not pooled; empty where they are, and for a model that generates.

    Many checkpoints that pool have the configuration of a model with towers, and no towers, so these are asked for.
    """
    if pooling is None or settings["limit_mm_per_prompt"]:
        return ""
    return "a model that pools sees pictures where --limit-mm-per-prompt says how many, as in image=1"


def _given_rows(settings: Settings, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of rows that requests may give, by the fields of `MediaConfig`."""
    kind = str(config["model_type"])
    if not settings["enable_mm_embeds"]:
        return {}
    vision = config.get("vision_config") or {}
    levels = len(vision.get("deepstack_visual_indexes", DEEPSTACK)) if kind.startswith("qwen3_vl") else 0
    # Pixtral's rows have text between them.
    around = AROUND_ROWS.get(kind, {}) if placeholder_of(config) != PIXTRAL else {}
    return {
        "row_size": int(text_config(config).get("hidden_size") or 0) * (1 + levels),
        "row_scale": float(text_config(config).get("embedding_multiplier", 1.0)) if kind == "granite_speech" else 1.0,
        "around_rows": dict(around),
        "levels": levels,
        "merged": int(vision.get("spatial_merge_size", 2)) if kind in THREE_POSITIONS else 0,
    }


def _shared(settings: Settings) -> dict[str, Any]:
    """Return the settings of a cache that API processes share, by the fields of `MediaConfig`."""
    return {
        "shares_cache": settings["mm_processor_cache_type"] == "shm",
        "max_shared_bytes": settings["mm_shm_cache_max_object_size_mb"] << 20,
    }


def own_processor(manifest: CheckpointManifest) -> str:
    """Return the processor that a model has unless the user names one."""
    return "gguf" if PROJECTOR in manifest.config else "transformers"


def processed(settings: Settings, manifest: CheckpointManifest) -> list[str]:
    """Return the modalities of a model's served media."""
    return [AUDIO] if transcribes(manifest) else list(_places(settings, manifest.config)[0])


def tower_bytes(settings: Settings, path: str, manifest: CheckpointManifest) -> int:
    """Return the bytes of the tower or encoder that the engine loads; 0 for a model whose prompts carry text."""
    if why_not(settings, path, manifest):
        return 0
    sounds = transcribes(manifest)
    served = processed(settings, manifest)
    kind = str(manifest.config.get("model_type"))
    modules: tuple[str, ...] = ENCODER
    if settings["enable_word_times"] and sounds and alignment_heads(path):
        modules += DECODER
    shapes = [
        tensor.shape
        for name, tensor in manifest.tensors.items()
        if (name.startswith(modules) if sounds else (module := other_module(name)) and not unread(kind, served, module))
    ]
    return sum(map(math.prod, shapes)) * ITEM_BYTES[settings["dtype"]]


def _most_of_a_step(settings: Settings) -> int:
    """Return the tokens of one sequence that a step computes for certain: each other one may need a token of it."""
    spare: int = settings["max_num_batched_tokens"] - settings["max_num_seqs"]
    return max(spare + 1, 0)


def needs_spans(settings: Settings, path: str, manifest: CheckpointManifest) -> bool:
    """Whether tokens of served prompts see later ones."""
    config = manifest.config
    sees = two_sided(str(config.get("model_type")), text_config(config))
    return bool(sees) and not why_not(settings, path, manifest)


def why_not(settings: Settings, path: str, manifest: CheckpointManifest) -> str:
    """Return why no medium of a checkpoint is served, as the end of a sentence; empty where one is."""
    config = manifest.config
    kind = str(config.get("model_type"))
    if transcribes(manifest):
        return missing(path) or (
            "" if importlib.util.find_spec("av") else "PyAV is not installed; install core-engine[media]"
        )
    if not is_wrapper(config) and kind not in UNSERVED:
        return "the model takes text"
    if settings["language_model_only"]:
        return "the server runs with --language-model-only"
    if not modalities_of(config):
        return f"media of models of type '{kind}' are not served, only its text is: {UNSERVED.get(kind, ELSEWHERE)}"
    places, refusals = _places(settings, config)
    if not places:
        return next(iter(refusals.values()))
    if not Path(path).is_dir() and PROJECTOR not in config:
        return "the checkpoint has no files of a processor"
    if kind in THREE_POSITIONS and not rope_spec(text_config(config), full=True).axes:
        return "the configuration has no mrope_section"
    return _unprocessed(settings, manifest, kind)


def _unprocessed(settings: Settings, manifest: CheckpointManifest, kind: str) -> str:
    """Return why pictures cannot be processed on this machine, as the end of a sentence; empty where they can."""
    is_own = settings["mm_processor"] in (None, own_processor(manifest))
    if is_own and kind in OF_TORCHVISION and importlib.util.find_spec("torchvision") is None:
        return f"transformers processes pictures of models of type '{kind}' with torchvision, which is not installed"
    return ""


def modalities_of(config: Mapping[str, Any]) -> dict[str, str]:
    """Return what stands for an item of each modality that the model's family has."""
    kind = str(config.get("model_type"))
    found = {IMAGE: placeholder_of(config), AUDIO: SOUNDS.get(kind, ""), VIDEO: VIDEOS.get(kind, "")}
    return {name: placeholder for name, placeholder in found.items() if placeholder}


def _places(settings: Settings, config: Mapping[str, Any]) -> tuple[dict[str, Place], dict[str, str]]:
    """Return what stands for an item of each modality that is served, and why others of the model are not."""
    places: dict[str, Place] = {}
    refusals: dict[str, str] = {}
    limits = item_limits(settings["limit_mm_per_prompt"])
    kind = str(config.get("model_type"))
    for name, placeholder in modalities_of(config).items():
        keys = (f"{name}_token_id", f"{name}_token_index")
        token = next((config[key] for key in keys if config.get(key) is not None), None)
        if not limits[name]:
            refusals[name] = f"--limit-mm-per-prompt allows no {NOUNS[name]}s"
        elif token is None:
            refusals[name] = f"the configuration has no {keys[0]}"
        elif why := _lacking(name, kind, config):
            refusals[name] = why
        else:
            shown = SHOWN.get(kind, "") if name == AUDIO else ""
            closing = CLOSINGS.get(kind, {}).get(name)
            places[name] = Place(placeholder, int(token), shown, closing and int(config.get(*closing)))
    return places, refusals


def _lacking(name: str, kind: str, config: Mapping[str, Any]) -> str:
    """Return what this installation or checkpoint lacks for a modality of a model type; empty: nothing."""
    package, title = ("PIL", "Pillow") if name == IMAGE else ("av", "PyAV")
    if importlib.util.find_spec(package) is None:
        return f"{title} is not installed; install core-engine[media]"
    if name == IMAGE and kind in OF_TIMM and not all(map(importlib.util.find_spec, ("timm", "torchvision"))):
        return "its tower of pictures needs timm and torchvision, which are not installed"
    if name in OPTIONAL.get(kind, ()) and not config.get(TOWER_CONFIGS[name]):
        return f"this checkpoint has no tower of {NOUNS[name]}s"
    if name == AUDIO and config.get("has_lora_adapter"):
        return "its sounds need the checkpoint's own adapter (has_lora_adapter), which is not served"
    return ""


def transcribes(manifest: CheckpointManifest) -> bool:
    """Whether a checkpoint's model transcribes sounds, and answers nothing else."""
    return manifest.config.get("model_type") == MODEL_TYPE


def derive_for_sounds(settings: Settings, manifest: CheckpointManifest) -> None:
    """Derive what transcriptions need of other arguments, where the user leaves it open."""
    if not transcribes(manifest):
        return
    for name, value, reason in OF_SOUNDS:
        if not settings.user_set(name):
            settings.derive(name, value, reason)


def _transcribing(settings: Settings, path: str, hf_config: Mapping[str, Any]) -> MediaConfig:
    """Return the settings of a model that transcribes."""
    sound = sound_config(
        path, hf_config, settings["max_model_len"], settings["max_audio_seconds"], words=settings["enable_word_times"]
    )
    return MediaConfig(
        model=path,
        model_type=MODEL_TYPE,
        placeholder="",
        token_id=sound.start,
        limits={AUDIO: 1},
        row_cache_bytes=int(settings["mm_encoder_cache_gb"] * GIB),
        processor_cache_bytes=int(settings["mm_processor_cache_gb"] * GIB),
        num_workers=settings["renderer_num_workers"],
        **_shared(settings),
        sound=sound,
    )


def item_limits(given: dict[str, Any]) -> dict[str, int]:
    """Return the limits by modality, of values that are numbers, or objects with a `count`."""
    limits = dict(DEFAULTS)
    for name, value in given.items():
        limits[name] = int(value.get("count", DEFAULTS.get(name, 0))) if isinstance(value, dict) else int(value)
    return limits


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().resolve()) if path else ""
