"""The encoder of a model that transcribes, as transformers' module with the checkpoint's own tensors.

Owns: its construction, and the rows of one window. Never does: cache rows, or know a request. Called by: the observer of
media, from its thread.

One window is computed at a time, so it has the same rows alone and in company.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from core.api.adapters import AdaptersConfig
from core.api.config import EngineConfig
from core.api.errors import CheckpointError, UserError
from core.plugin.table import PluginTable
from core_media.features import unpack
from core_media.serving.aligner import Aligner
from core_media.serving.tower_adapters import LinearChange, TowerAdapters
from core_media.serving.widened import widen
from core_media.sound.config import DECODER, ENCODER, SoundConfig
from core_runtime.contracts import Loader
from core_runtime.executor.plugin_loading import load_plugin

FLOAT32 = 4


class Encoder:
    """The encoder of one engine. Raises UserError if it cannot be built.

    num_bytes: of its weights. row_bytes: of one row. levels: see `MediaItem`.
    """

    levels = 0

    def __init__(self, config: EngineConfig, sound: SoundConfig) -> None:
        import transformers
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        self._dtype: torch.dtype = getattr(torch, config.model.dtype)
        settings = {name: value for name, value in config.model.hf_config.items() if name != "model_type"}
        try:
            model: Any = WhisperEncoder(transformers.WhisperConfig(**settings))
        except Exception as error:
            raise UserError(
                f"transformers {transformers.__version__} builds no encoder from this checkpoint's configuration "
                f"({type(error).__name__}: {str(error).strip()[:300]}); complete it."
            ) from error
        try:
            model.load_state_dict(_tensors(config, ENCODER))
        except RuntimeError as error:
            raise CheckpointError(
                f"The checkpoint does not fit the encoder: {str(error).strip()[:300]}. Complete it."
            ) from error
        self._model = model.eval().to(self._dtype)
        widen(self._model, self._dtype)
        self.row_bytes = FLOAT32 * sound.size
        self.num_bytes = sum(each.numel() * each.element_size() for each in model.parameters())
        self._aligner: Aligner | None = None
        if sound.words:
            decoder = transformers.WhisperConfig(**settings)
            self._aligner = Aligner(decoder, _tensors(config, DECODER), self._dtype, sound)
            self.num_bytes += self._aligner.num_bytes

    def adapters(self, config: AdaptersConfig) -> TowerAdapters:
        """Return a keeper without a module: no adapter changes an encoder."""
        return TowerAdapters({}, config)

    def rows(self, features: bytes, changes: Sequence[LinearChange] = ()) -> bytes:
        """Return the rows of a window, float32 [rows, size]. Raises ValueError for features that the encoder does not take."""
        [window] = unpack(features).values()
        with torch.inference_mode():
            given = torch.from_numpy(window).unsqueeze(0).to(self._dtype)
            rows = self._model(given).last_hidden_state[0]
            return bytes(rows.float().contiguous().numpy())

    def times(self, rows: bytes, prompt: Sequence[int], tokens: Sequence[int], frames: int) -> list[int]:
        """Return when each token of a window is said, see `Aligner.times`. Raises ValueError where nothing finds it."""
        if self._aligner is None:
            raise ValueError("times of words need --enable-word-times, and alignment_heads in generation_config.json")
        return self._aligner.times(rows, prompt, tokens, frames)

    def embedded(self, modality: str, token_id: int, changes: Sequence[LinearChange] = ()) -> bytes:
        """Raise ValueError: the tokens of this model have embeddings of the decoder alone."""
        raise ValueError(f"the encoder embeds no token, as {token_id}")

    def grid(self, features: bytes) -> list[int]:
        """Return no grid: rows of sounds have one position each."""
        return []


def _tensors(config: EngineConfig, prefixes: tuple[str, ...]) -> dict[str, torch.Tensor]:
    """Read the tensors of a module, by their names in it. prefixes: of their names. Raises CheckpointError."""
    plugins = PluginTable(config.plugins.table)
    loader: Loader = load_plugin(config, plugins, "loader", config.plugins.loader)
    manifest = loader.resolve(config.model.model)
    names = [name for name in manifest.tensors if name.startswith(prefixes)]
    found = {}
    for name, tensor in loader.iter(manifest, names):
        prefix = next(each for each in prefixes if name.startswith(each))
        found[name.removeprefix(prefix)] = tensor.clone().float()
    return found
