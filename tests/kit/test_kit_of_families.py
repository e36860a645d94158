"""The kit on families: one that renames every key passes, one that the engine cannot run is found."""

import json
import textwrap

import pytest
import torch
from safetensors.torch import save_file

from core_config.resolve import resolve
from core_kit import cases
from core_kit.checkpoints import TINY, write_tokenizer
from core_kit.checks.model import CHECKS
from core_kit.skeleton import TEMPLATES, renamed
from core_runtime.models.families import row_spec
from tests.kit.cheats import HEADER, failing

FAMILY = renamed((TEMPLATES / "model/core_my_plugin/family.py").read_text(), "cheat", "model")
OWN = {"vocab_size": "n_words", "hidden_size": "width", "max_position_embeddings": "n_positions"}
BIAS = "qkv_bias=True,"
MANIFEST = """
KIND = "model"
@hookimpl
def core_spec(): return PluginSpec(name="cheat", summary="it cheats")
@hookimpl
def core_claim(facts): return "mine" if getattr(facts, "model_type", "") == "cheat" else None
@hookimpl
def core_load(context): return CheatFamily()
"""


def source(*changes):
    """A family of one file whose configurations have names of their own, with some words changed."""
    text = FAMILY.replace(BIAS, f"{BIAS} keys={OWN},")
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    text = text.replace("from __future__ import annotations\n", "")
    return f"from __future__ import annotations\n{HEADER}{text}{MANIFEST}"


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    """A model of the family: its own keys, its own tensor names."""
    folder = tmp_path_factory.mktemp("cheat_model")
    config = {OWN.get(key, key): value for key, value in TINY.items()}
    config |= {"model_type": "cheat", "architectures": ["CheatForCausalLM"]}
    (folder / "config.json").write_text(json.dumps(config))
    names: dict[str, object] = {}
    exec(compile(source(), "family", "exec"), names)
    tensors = {}
    for name, shape in row_spec(config, names["CheatFamily"].row).tensor_shapes().items():
        for own, canonical in names["NAMES"].items():
            if name.startswith(canonical):
                name = own + name.removeprefix(canonical)
                break
        tensors[name] = torch.ones(shape) if "norm" in name else torch.randn(shape) * 0.3
    save_file(tensors, str(folder / "model.safetensors"))
    write_tokenizer(folder)
    return folder


def test_a_family_that_renames_every_key_passes_and_is_resolved(tmp_path, checkpoint):
    path = tmp_path / "cheat.py"
    path.write_text(source())
    found = [case.finding() for case in cases("model", "cheat", model=str(checkpoint), plugins=str(path))]
    assert [finding for finding in found[-len(CHECKS) :] if finding.verdict != "passed"] == []
    asked = {"model": str(checkpoint), "plugins": str(path)}
    assert resolve(asked, context="llm", environ={}).engine.model.vocab_size == TINY["vocab_size"]


def test_a_family_that_the_engine_cannot_run_is_found(tmp_path, checkpoint):
    odd = """
        def odd(config, spec):
            import msgspec
            return msgspec.structs.replace(spec, mlp=msgspec.structs.replace(spec.mlp, activation="tangent"))
    """
    changed = source((BIAS, f"{BIAS} adjust=odd,"), ("class CheatFamily", f"{textwrap.dedent(odd)}\nclass CheatFamily"))
    assert "tangent" in failing(tmp_path, "model", changed, "The engine runs", model=str(checkpoint))
