"""Towers in bfloat16 on processors that multiply float32 alone: no weight changes, and rows are nearer to those in float32."""

from pathlib import Path
from typing import Any

import pytest
import torch

from core_config.resolve import resolve
from core_media.config import AUDIO, media_of
from core_media.features import pack
from core_media.processing.worker import Worker
from core_media.serving import widened
from core_media.serving.encoder import Encoder
from core_media.serving.tower import Tower
from tests.media.checkpoints import SAVE, file_of, picture
from tests.media.heard import SAVE_HEARD, wav
from tests.media.omni import SAVE_OMNI
from tests.media.whisper import save_whisper

EVERY: dict[str, Any] = {**SAVE, **SAVE_HEARD, **SAVE_OMNI, "whisper": save_whisper}
KINDS = [kind if kind == "llava" else pytest.param(kind, marks=pytest.mark.media) for kind in sorted(EVERY)]


def made(checkpoint: Path, dtype: str, features: bytes = b"") -> tuple[torch.Tensor, Tower | Encoder, bytes]:
    """The rows of an item in a data type, what computed them, and the item's features."""
    config = resolve({"model": str(checkpoint), "dtype": dtype, "max_model_len": 128}, context="explain").engine
    media = media_of(config)
    assert media is not None
    if not features:
        data = wav() if media.modality == AUDIO else file_of(picture(0, 60, 50))
        arrays = dict(Worker(media).run(media.modality, data).arrays)
        arrays.pop("seconds", None)  # of a whole sound, whose windows the encoder is given
        features = pack(arrays)
    tower = Tower(config, media) if media.sound is None else Encoder(config, media.sound)
    return torch.frombuffer(bytearray(tower.rows(features)), dtype=torch.float32), tower, features


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_nearer_to_those_in_float32(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    EVERY[kind](tmp_path)
    exact, _, features = made(tmp_path, "float32")
    monkeypatch.setattr(widened, "multiplies", lambda dtype: True)
    plain, tower, _ = made(tmp_path, "bfloat16", features)
    weights = {name: each.clone() for name, each in tower._model.state_dict().items() if "language_model" not in name}
    monkeypatch.setattr(widened, "multiplies", lambda dtype: False)
    wide, tower, _ = made(tmp_path, "bfloat16", features)
    assert (wide - exact).abs().mean() <= (plain - exact).abs().mean()
    again = torch.frombuffer(bytearray(tower.rows(features)), dtype=torch.float32)
    assert torch.equal(again, wide)
    found = tower._model.state_dict()
    for name, each in weights.items():
        assert each.dtype == found[name].dtype and torch.equal(each, found[name])
