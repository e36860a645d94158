"""Fixtures of several tests of the executor."""

from typing import Any

import pytest

from core_runtime.models.tensors.packing import Packing


@pytest.fixture
def packed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the layers that are packed from tensors."""
    names: list[str] = []
    original = Packing.pack

    def noting(self: Packing, part: Any, *arguments: Any, **options: Any) -> Any:
        names.append(part.name)
        return original(self, part, *arguments, **options)

    monkeypatch.setattr(Packing, "pack", noting)
    return names
