"""The kit's conformance suite on a random checkpoint of the family, and text generated from it."""

import json

import pytest
from core_my_plugin.family import NAMES, MyPluginFamily
from safetensors.torch import save_file

from core_kit import cases
from core_kit.checkpoints import TINY, write_tokenizer
from core_runtime.models.families import row_spec


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory):
    import torch

    folder = tmp_path_factory.mktemp("my_plugin_model")
    config = {**TINY, "model_type": "my_plugin", "architectures": ["MyPluginForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    tensors = {}
    for name, shape in row_spec(config, MyPluginFamily.row).tensor_shapes().items():
        start = next((own for own, canonical in NAMES.items() if name.startswith(canonical)), None)
        own = name if start is None else start + name.removeprefix(NAMES[start])
        tensors[own] = torch.ones(shape) if "norm" in name else torch.randn(shape) * 0.3
    save_file(tensors, str(folder / "model.safetensors"))
    write_tokenizer(folder)
    return folder


@pytest.mark.parametrize("case", cases("model", "my_plugin"), ids=str)
def test_conformance(case, checkpoint):
    case.subject.model = str(checkpoint)
    case()


def test_a_model_generates(generate_greedily, checkpoint):
    (tokens,) = generate_greedily([[1, 40, 41, 42]], model=checkpoint)
    assert len(tokens) == 8
