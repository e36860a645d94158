"""Towers in the memory plan: as many bytes as the engine loads."""

from pathlib import Path
from typing import Any

import pytest

from core_config.explained import memory_values
from core_config.resolve import resolve
from core_media.config import media_of
from core_media.serving.encoder import Encoder
from core_media.serving.tower import Tower
from tests.media.checkpoints import SAVE

OF_MEDIA = pytest.mark.media
FAMILIES = [kind if kind == "llava" else pytest.param(kind, marks=OF_MEDIA) for kind in sorted(SAVE)]


@pytest.mark.parametrize("kind", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", pytest.param("bfloat16", marks=OF_MEDIA)])
def test_the_plan_has_the_bytes_of_the_tower(kind: str, dtype: str, tmp_path: Path) -> None:
    SAVE[kind](tmp_path)
    found = resolve({"model": str(tmp_path), "dtype": dtype}, context="llm")
    media = media_of(found.engine)
    assert media is not None
    loaded = Tower(found.engine, media).num_bytes
    assert loaded > 0
    assert abs(memory_values(found.memory)["tower_bytes"] - loaded) <= 0.02 * loaded


def test_the_plan_has_the_bytes_of_an_encoder(whisper: Path) -> None:
    found = resolve({"model": str(whisper)}, context="llm")
    media = media_of(found.engine)
    assert media is not None and media.sound is not None
    assert memory_values(found.memory)["tower_bytes"] == Encoder(found.engine, media.sound).num_bytes


@pytest.mark.parametrize("given", [{"language_model_only": True}, {"limit_mm_per_prompt": {"image": 0}}])
def test_a_tower_that_is_not_loaded_takes_nothing(llava: Path, given: dict[str, Any]) -> None:
    values = memory_values(resolve({"model": str(llava), **given}, context="llm").memory)
    assert values["tower_bytes"] == values["tower_rows_bytes"] == 0
