"""The tower of a model, as transformers' module with the checkpoint's own tensors.

Owns: its construction without the language model, and the rows of one item. Never does: cache rows, or know a request.
Called by: the observer of media, from its thread.

One item is computed at a time, so an item has the same rows alone and in company.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

import torch
from torch import Tensor

from core.api.adapters import AdaptersConfig
from core.api.config import EngineConfig
from core.api.errors import CheckpointError, UserError
from core.plugin.table import PluginTable
from core_media.config import AUDIO, MediaConfig
from core_media.families import unread, unserved
from core_media.features import find, unpack
from core_media.serving.absent_towers import without_towers
from core_media.serving.sound_rows import sound_rows
from core_media.serving.tower_adapters import LinearChange, TowerAdapters, adapted
from core_media.serving.widened import widen
from core_runtime.contracts import Loader
from core_runtime.executor.plugin_loading import load_plugin
from core_runtime.models.families.wrappers import PROJECTOR, other_module, text_config, text_key

TEXT_ROWS: Final = 8
"""Vocabulary of the language model that is built beside the tower and dropped again: transformers builds no tower alone."""
OF_TEXT: Final = ("language_model", "text_model", "lm_head")
"""Modules of the language model."""
FLOAT32: Final = 4
SOUND: Final = "input_features"
VIDEO_PIXELS: Final = "pixel_values_videos"
NOT_OF_THE_WHOLE: Final = ("quantization_config", "model_type", PROJECTOR)
LEFT_OUT: Final = (
    "layer_types", "per_layer_config", "activation_sparsity_pattern", "pad_token_id", "bos_token_id", "eos_token_id",
    "quantization_config",
)  # fmt: skip
OF_NO_LAYERS: Final[Mapping[str, int]] = MappingProxyType({"intermediate_size": 1, "num_kv_shared_layers": 0})
"""Keys of the language model that may list its layers, or count on some of them."""


class Tower:
    """The tower of one engine. Raises UserError if it cannot be built.

    num_bytes: of its weights. row_bytes: of one row. levels: see `MediaItem`.
    """

    def __init__(self, config: EngineConfig, media: MediaConfig) -> None:
        self._dtype: torch.dtype = getattr(torch, config.model.dtype)
        tensors = _tensors(config, media)
        self._model: Any = _built(config.model.hf_config, media, tensors, self._dtype)
        widen(self._model, self._dtype)
        vision = getattr(self._model.config, "vision_config", None)
        self.levels = len(getattr(vision, "deepstack_visual_indexes", ()))
        self.row_bytes = FLOAT32 * (1 + self.levels) * int(self._model.config.get_text_config().hidden_size)
        self._merged = int(getattr(vision, "spatial_merge_size", 1))
        self._per_second = getattr(vision, "tokens_per_second", None)
        self._per_second_last = getattr(self._model.config, "position_id_per_seconds", None)
        self.num_bytes = sum(each.numel() * each.element_size() for each in self._model.parameters())

    def adapters(self, config: AdaptersConfig) -> TowerAdapters:
        """Return the keeper of adapters that change this tower."""
        return TowerAdapters(dict(self._model.named_modules()), config)

    def rows(self, features: bytes, changes: Sequence[LinearChange] = ()) -> bytes:
        """Return the rows of an item, float32 [rows, size]. Raises ValueError for features that the tower does not take.

        changes: of the request's adapter.
        """
        arrays = {name: torch.from_numpy(array) for name, array in unpack(features).items()}
        given = {name: each.to(self._dtype) if each.is_floating_point() else each for name, each in arrays.items()}
        with torch.inference_mode(), adapted(changes):
            if SOUND in given:
                return bytes(sound_rows(self._model, given).float().contiguous().numpy())
            model = self._model
            compute = model.get_video_features if VIDEO_PIXELS in given else model.get_image_features
            takes = inspect.signature(compute).parameters
            made = compute(**{name: each for name, each in given.items() if name in takes}, return_dict=True)
            parts = [made.pooler_output, *(made.deepstack_features if self.levels else ())]
            rows = torch.cat([_joined(part) for part in parts], dim=1)
            return bytes(rows.float().contiguous().numpy())

    def times(self, rows: bytes, prompt: Sequence[int], tokens: Sequence[int], frames: int) -> list[int]:
        """Raise ValueError: this model writes no transcripts."""
        raise ValueError("the tower aligns no tokens")

    def embedded(self, modality: str, token_id: int, changes: Sequence[LinearChange] = ()) -> bytes:
        """Return the row of a token that the tower of a modality embeds, float32 [size]. changes: as in `rows`."""
        embed = self._model.embed_audio if modality == AUDIO else self._model.embed_vision
        with torch.inference_mode(), adapted(changes):
            return bytes(embed(input_ids=torch.tensor([token_id])).float().contiguous().numpy())

    def grid(self, features: bytes) -> list[int]:
        """Return the grid of an item, see `MediaItem`; empty for models whose rows have one position each."""
        patches = find(features, "image_grid_thw")
        patches = find(features, "video_grid_thw") if patches is None else patches
        if patches is None:
            return []
        time, height, width = (int(count) for count in patches.reshape(-1).tolist())
        seconds = find(features, "second_per_grid_ts")
        ends: list[int] = []
        if seconds is not None:
            step = torch.from_numpy(seconds.copy()).reshape(())
            places = torch.arange(time)
            # In the order of each family's own product, whose last bit may decide where a row lies.
            if self._per_second_last is not None:
                ends = ((places * step * self._per_second_last).long() + 1).tolist()
            elif self._per_second is not None:
                ends = ((places * (self._per_second * step)).long() + 1).tolist()
        return [time, height // self._merged, width // self._merged, *ends]


def _joined(parts: Sequence[Tensor] | Tensor) -> Tensor:
    """Return the rows [R, H] of an item, of which a tower makes one tensor or several."""
    return torch.cat([part.reshape(-1, part.shape[-1]) for part in parts])


def _tensors(config: EngineConfig, media: MediaConfig) -> dict[str, Tensor]:
    """Read the tensors beside the language model, of the modalities that are served. Raises CheckpointError."""
    plugins = PluginTable(config.plugins.table)
    loader: Loader = load_plugin(config, plugins, "loader", config.plugins.loader)
    manifest = loader.resolve(config.model.model)
    others = {name: module for name in manifest.tensors if (module := other_module(name)) is not None}
    names = [name for name, module in others.items() if not unread(media.model_type, media.places, module)]
    return {name: tensor.clone() for name, tensor in loader.iter(manifest, names)}


def _built(hf_config: Mapping[str, Any], media: MediaConfig, tensors: dict[str, Tensor], dtype: torch.dtype) -> Any:
    """Return the model around the tower, without its language model. Raises UserError."""
    import transformers

    model_type = media.model_type
    # A copy, because transformers writes defaults into the mappings, which the engine reads again after sleep.
    whole = copy.deepcopy(_without_text(hf_config))
    try:
        with _silent():
            settings = transformers.AutoConfig.for_model(model_type, **whole)
            pictured, heard = (
                transformers.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
                transformers.MODEL_FOR_MULTIMODAL_LM_MAPPING,
            )
            without_towers(settings, media)
            kind = (heard if AUDIO in media.places else pictured)[type(settings)]
            model, report = kind.from_pretrained(
                None, config=settings, state_dict=tensors, dtype=dtype, output_loading_info=True
            )
    except Exception as error:
        raise UserError(
            f"transformers {transformers.__version__} builds no tower of a '{model_type}' from this checkpoint "
            f"({type(error).__name__}: {str(error).strip()[:300]}); start with --language-model-only."
        ) from error
    absent = unserved(model_type, media.places).values()
    _check_complete(report, model_type, (*OF_TEXT, *absent, *hf_config.get(PROJECTOR, {}).get("absent", ())))
    inner = model.eval().model
    for name in (*OF_TEXT, *absent):
        if hasattr(inner, name):
            setattr(inner, name, None)
    return inner


def _without_text(hf_config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the configuration of the model with a language model of no layers."""
    text = {name: value for name, value in text_config(hf_config).items() if name not in LEFT_OUT}
    text |= {"num_hidden_layers": 0, "vocab_size": TEXT_ROWS, "pad_token_id": None}
    text |= {name: value for name, value in OF_NO_LAYERS.items() if name in text}
    whole = {name: value for name, value in hf_config.items() if name not in NOT_OF_THE_WHOLE}
    whole[text_key(hf_config) or "text_config"] = text
    return whole


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Let transformers report nothing: it would name the language model as missing, and show progress."""
    import transformers

    verbosity = transformers.logging.get_verbosity()
    shows_progress = transformers.logging.is_progress_bar_enabled()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers.logging.set_verbosity(verbosity)
        if shows_progress:
            transformers.logging.enable_progress_bar()


def _check_complete(report: Mapping[str, Any], model_type: str, needless: Sequence[str]) -> None:
    """Raise CheckpointError for tensors that a tower lacks, or that do not fit.

    report: made by transformers while it loaded them. needless: parts of the names of tensors that it may lack.
    """
    missing = [name for name in report["missing_keys"] if not any(part in name for part in needless)]
    unknown = [*report["unexpected_keys"], *report["mismatched_keys"]]
    if missing or unknown:
        listed = ", ".join(sorted(map(str, missing or unknown))[:5])
        what = "has no tensor for" if missing else "has tensors that do not fit"
        raise CheckpointError(
            f"The checkpoint {what} the tower of a '{model_type}': {listed}. Complete it, or start with --language-model-only."
        )
