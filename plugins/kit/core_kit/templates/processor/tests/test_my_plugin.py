"""The kit's conformance suite, and one picture."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from core_my_plugin.manifest import Arguments
from core_my_plugin.processor import MEAN, STD, Squares
from PIL import Image

from core_kit import cases
from core_media.contract import Item


@pytest.mark.parametrize("case", cases("processor", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_a_wide_picture_has_margins_above_and_below(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"vision_config": {"image_size": 28, "patch_size": 14}}))
    media = SimpleNamespace(model=str(tmp_path), model_type="llava", placeholder="<image>")
    made = Squares(media, Arguments(grey=0.25)).process(Item("image", Image.new("RGB", (56, 28), "white")))
    assert made.text == "<image>" * 4
    shown = made.arrays["pixel_values"][0].transpose(1, 2, 0) * STD + MEAN
    np.testing.assert_allclose(shown[:7], 0.25, atol=1e-6)
    np.testing.assert_allclose(shown[7:21], 1.0, atol=1e-6)
    np.testing.assert_allclose(shown[21:], 0.25, atol=1e-6)
