"""The connector `bench`: blocks of every prompt that no model computed."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch

from core.kv.connectors import KVConnectors
from core.kv.manager import KVManager
from core.kv.sequence import KVSequence
from core_kit.fixtures.kv_context import context_of
from core_kv_connectors.made_up import NUM_PAGES, MadeUp
from core_kv_connectors.manifests import bench
from tests.kv.tier_fakes import PAGE_BYTES, key, look_up


def test_every_prompt_has_blocks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        connector = bench.core_load(context_of(tmp_path, bench.Arguments(seed=5)))
    assert "MADE UP (seed 5)" in caplog.text
    kv = KVManager(9, 4, connectors=KVConnectors([connector]), max_step_tokens=64)
    assert look_up(kv, KVSequence(list(range(29)))).num_tokens == 28


@pytest.mark.parametrize(
    "kind", [torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.float8_e5m2], ids=str
)
def test_values_are_small_numbers_of_every_type(kind: torch.dtype) -> None:
    connector = MadeUp(1 << 14, 3)
    for number in range(100):
        page = connector.get(0, key(number))
        assert page is not None
        values = torch.from_numpy(page).view(kind).float()
        assert torch.isfinite(values).all() and values.abs().max() <= 2 and values.unique().numel() > 8


def test_values_are_those_of_the_seed() -> None:
    one, same, other = (MadeUp(PAGE_BYTES, seed) for seed in (1, 1, 2))
    pages = [one.get(0, key(number)) for number in range(64)]
    assert all(np.array_equal(page, same.get(0, key(number))) for number, page in enumerate(pages))
    assert not any(np.array_equal(page, other.get(0, key(number))) for number, page in enumerate(pages))
    assert 1 < len({page.tobytes() for page in pages if page is not None}) <= NUM_PAGES
