"""The classes of transformers with pictures or sounds: each was tried, and is served or refused by name."""

import pytest

from core_media.families import FAMILIES
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
