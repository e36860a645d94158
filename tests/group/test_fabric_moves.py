"""Streams that move between the engines of a group with pages that a library brings. For `make test-fabrics`."""

from pathlib import Path

import pytest

from core_frontend.group import replacements
from core_supervision.watch import end_requests
from tests.engine.test_fabric_handoff import PACKAGES
from tests.group.test_real_moves import end, streams_go_on


@pytest.mark.parametrize("family", ["llama", "lfm2"])
@pytest.mark.parametrize("name", PACKAGES)
async def test_streams_of_a_drained_engine_go_on_to_the_bit(
    name: str, family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(PACKAGES[name], reason="make test-fabrics installs it")
    await streams_go_on(name, family, {}, tmp_path, monkeypatch)


@pytest.mark.parametrize("name", PACKAGES)
async def test_the_engine_that_follows_another_one_moves_pages_too(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both get SIGTERM, one after the other: the second one's pages go to the engine that has followed the first."""
    pytest.importorskip(PACKAGES[name], reason="make test-fabrics installs it")
    monkeypatch.setattr(end_requests, "LOOK_S", 0.01)
    monkeypatch.setattr(replacements, "SETTLE_S", 0.0)
    await streams_go_on(name, "llama", {}, tmp_path, monkeypatch, leaves=end)
