"""The kit's conformance suite, and an adapter that is read."""

import numpy as np
import pytest
from core_my_plugin.format import NumpyFormat

from core_kit import cases


@pytest.mark.parametrize("case", cases("adapter", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_an_adapter_is_read(tmp_path):
    np.save(tmp_path / "model.layers.0.self_attn.q_proj.a.npy", np.ones((2, 8), np.float32))
    np.save(tmp_path / "model.layers.0.self_attn.q_proj.b.npy", np.ones((4, 2), np.float32))
    assert NumpyFormat().claims(str(tmp_path))
    (change,) = NumpyFormat().read(str(tmp_path)).changes
    assert change.module == "model.layers.0.self_attn.q_proj"
    assert change.a.shape == (2, 8) and change.b.shape == (4, 2)
