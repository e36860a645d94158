"""The kit's conformance suite on a checkpoint in the loader's own format, and text generated from it."""

import json

import numpy as np
import pytest

from core_kit import cases
from core_kit.checkpoints import TINY, random_tensors, write_tokenizer


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("my_plugin_checkpoint")
    (folder / "config.json").write_text(json.dumps(TINY))
    np.savez(folder / "weights.npz", **{name: tensor.numpy() for name, tensor in random_tensors(TINY)})
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("case", cases("loader", "my_plugin"), ids=str)
def test_conformance(case, checkpoint):
    case.subject.model = str(checkpoint)
    case()


def test_values_equal_those_of_a_plain_checkpoint(generate_greedily, checkpoint):
    prompts = [[1, 40, 41, 42]]
    assert generate_greedily(prompts, model=checkpoint) == generate_greedily(prompts)
