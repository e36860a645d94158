"""The classes of transformers with pictures or sounds: each was tried, and is served or refused by name."""

from typing import Any

import pytest
from transformers import CONFIG_MAPPING

from core_config.media import why_not
from core_media.families import ELSEWHERE, FAMILIES, UNSERVED
from core_runtime.specs.checkpoint import CheckpointManifest, TokenizerSource
from tests.media.classes import classes, known, tried


def test_every_class_of_transformers_was_tried() -> None:
    """`python -m tests.media.classes` tries all."""
    assert set(known()) == set(classes())
    assert set(FAMILIES) <= {kind for kind, refusal in known().items() if not refusal}


@pytest.mark.media
@pytest.mark.parametrize("kind", classes())
def test_a_class_is_served_or_refused_by_name(kind: str) -> None:
    found = tried(kind)
    assert found == known()[kind]
    assert not found or "Unknown model architecture '" in found or "The model's configuration has " in found


@pytest.mark.parametrize("kind", ["gemma4_unified", "phi4_multimodal", "aria"])
def test_media_that_are_not_served_are_refused_with_a_way_out(kind: str) -> None:
    settings: Any = {"language_model_only": False}
    values = CONFIG_MAPPING[kind]().to_dict() | {"model_type": kind}
    manifest = CheckpointManifest("model", "safetensors", [], {}, values, TokenizerSource())
    sentence = why_not(settings, "model", manifest)
    assert (
        sentence
        == f"media of models of type '{kind}' are not served, only its text is: {UNSERVED.get(kind, ELSEWHERE)}"
    )
    assert kind not in FAMILIES and kind in classes()
