"""The data about absent keys is what the installed transformers fills in."""

import pytest
import transformers

from core_runtime.models.defaults import DIRECTORY, RELEASE, family_defaults
from core_runtime.models.defaults.__main__ import config_classes, read_class

CLASSES = config_classes()


def test_every_class_has_its_file_and_no_file_is_left_over() -> None:
    written = {path.stem for path in DIRECTORY.glob("*.json")}
    recorded = RELEASE.read_text().strip()
    if recorded != transformers.__version__:
        pytest.skip(f"the data is from transformers {recorded}, {transformers.__version__} is installed")
    assert written == set(CLASSES)
    differing = [name for name, one in CLASSES.items() if family_defaults(name) != read_class(one)]
    assert differing == [], "run `python -m core_runtime.models.defaults`"


def test_instances_of_the_classes_have_these_values() -> None:
    """A class may compute on top of its defaults, but these are what it starts from."""
    for model_type in ("llama", "mixtral", "deepseek_v3", "gpt2", "phi"):
        found = family_defaults(model_type)
        assert found is not None
        instance = CLASSES[model_type]()
        for key, value in found.defaults.items():
            if key != "partial_rotary_factor":
                assert getattr(instance, key) == value, (model_type, key)


def test_a_name_that_is_no_file_has_no_defaults() -> None:
    assert family_defaults("../defaults/llama") is None
    assert family_defaults("") is None
    assert family_defaults("nobody") is None
