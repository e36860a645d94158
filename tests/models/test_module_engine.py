"""`--model-impl` through the whole engine: the same tokens as the engine's own layers, and who is asked when."""

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tiny_models import SHAPE, byte_tokenizer

from core import LLM, PoolingParams, SamplingParams
from core.api.errors import ConfigError
from core_config.resolve import resolve
from core_runtime.models.fallback import description
from core_runtime.models.fallback import spec_cache as kept_specs
from core_runtime.models.fallback.description import builds, describe
from core_runtime.models.fallback.shape import shaped_model
from core_runtime.models.fallback.spec_cache import KeptSpecs
from core_runtime.specs.module_spec import ModuleSpec

PROMPTS = ["The paged cache", "a" * 70, "Tokens of many requests in one row"]
PARAMS = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def tiny_diffllama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("diffllama")
    torch.manual_seed(0)
    config = transformers.DiffLlamaConfig(**SHAPE)
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(directory)
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=byte_tokenizer(), eos_token="</s>")
    wrapped.save_pretrained(directory)
    return directory


@pytest.fixture
def within(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are told by this process, which has imported transformers anyway."""

    def told(hf_config: Mapping[str, Any], names: Sequence[str], directory: str | None) -> ModuleSpec:
        return shaped_model(hf_config, names, torch.float32, directory).spec

    monkeypatch.setattr(description, "describe", told)


def greedy(path: Path, **arguments: Any) -> list[list[int]]:
    """Tokens of all prompts, in chunks and with each other's company."""
    limits = {"max_num_batched_tokens": 32, "max_model_len": 128, "use_tqdm_on_load": False}
    llm = LLM(model=str(path), **limits, **arguments)
    try:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    finally:
        llm.close()
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.usefixtures("within")
@pytest.mark.parametrize("kind", ["LAST", "MEAN"])
def test_vectors_are_made_of_the_states_of_transformers(kind: str, tiny_diffllama: Path) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_diffllama, attn_implementation="eager")
    ids = list(range(5, 40))
    with torch.no_grad():
        states = model.model(input_ids=torch.tensor([ids]), use_cache=False).last_hidden_state[0]
    limits = {"max_num_batched_tokens": 32, "max_model_len": 128, "use_tqdm_on_load": False}
    plain = PoolingParams(use_activation=False)
    tokenwise = PoolingParams(use_activation=False, task="token_embed")
    llm = LLM(
        model=str(tiny_diffllama), runner="pooling", dtype="float32", pooler_config={"pooling_type": kind}, **limits
    )
    try:
        vector, each = (llm.encode({"prompt_token_ids": ids}, one, use_tqdm=False)[0] for one in (plain, tokenwise))
    finally:
        llm.close()
    expected = states[-1] if kind == "LAST" else states.mean(0)
    torch.testing.assert_close(vector.outputs.data, expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(each.outputs.data, states, atol=1e-4, rtol=0)


def transformers_greedy(model: Any, ids: list[int], tokens: list[int]) -> list[int]:
    """The likeliest token of transformers' model at the place of each of these tokens behind a prompt."""
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([ids + tokens[:-1]]), use_cache=False).logits[0]
    best: list[int] = logits[len(ids) - 1 :].argmax(-1).tolist()
    return best


@pytest.mark.usefixtures("within")
@pytest.mark.parametrize("numbers", [{"dtype": "float32"}, {"dtype": "bfloat16", "quantization": "int8"}])
def test_llama_has_the_tokens_of_its_own_row(tiny_llama: Path, numbers: dict[str, str]) -> None:
    own = greedy(tiny_llama, model_impl="core", **numbers)
    assert greedy(tiny_llama, model_impl="transformers", **numbers) == own


@pytest.mark.usefixtures("within")
def test_a_model_that_nobody_else_knows_runs_as_in_transformers(tiny_diffllama: Path) -> None:
    got = greedy(tiny_diffllama, dtype="float32")
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_diffllama, dtype=torch.float32).eval()
    tokenizer = byte_tokenizer()
    for prompt, tokens in zip(PROMPTS, got, strict=True):
        assert tokens == transformers_greedy(model, tokenizer.encode(prompt).ids, tokens)


CODE = """
import torch
from transformers import DiffLlamaConfig, DiffLlamaForCausalLM


class Loud(torch.nn.Module):
    def forward(self, x):
        return 50.0 * x.abs()


class OwnConfig(DiffLlamaConfig):
    model_type = "own_code"


class OwnModel(DiffLlamaForCausalLM):
    config_class = OwnConfig

    def __init__(self, config):
        super().__init__(config)
        for layer in self.model.layers:
            layer.mlp.act_fn = Loud()
"""


class Loud(torch.nn.Module):
    """As above."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 50.0 * x.abs()


@pytest.mark.usefixtures("within")
def test_code_of_a_checkpoint_runs_where_it_is_trusted_and_nowhere_else(
    tiny_diffllama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    monkeypatch.syspath_prepend(tmp_path / "modules")
    own = tmp_path / "own"
    shutil.copytree(tiny_diffllama, own)
    (own / "own_code.py").write_text(CODE)
    config = json.loads((own / "config.json").read_text())
    config |= {"model_type": "own_code", "architectures": ["OwnModel"]}
    config["auto_map"] = {"AutoConfig": "own_code.OwnConfig", "AutoModelForCausalLM": "own_code.OwnModel"}
    (own / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match="trust-remote-code"):
        resolve({"model": str(own)}, context="llm", environ={})

    got = greedy(own, dtype="float32", trust_remote_code=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(tiny_diffllama, dtype=torch.float32).eval()
    ids = [byte_tokenizer().encode(prompt).ids for prompt in PROMPTS]
    assert got != [transformers_greedy(model, *each) for each in zip(ids, got, strict=True)], "its code says otherwise"
    for layer in model.model.layers:
        layer.mlp.act_fn = Loud()
    assert got == [transformers_greedy(model, *each) for each in zip(ids, got, strict=True)]


def test_core_never_asks_transformers(tiny_diffllama: Path) -> None:
    with pytest.raises(ConfigError, match="Unknown model architecture 'DiffLlamaForCausalLM'"):
        resolve({"model": str(tiny_diffllama), "model_impl": "core"}, context="llm", environ={})


def test_a_head_for_classes_is_refused_by_name(tiny_llama: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_llama, tmp_path / "classes")
    file = tmp_path / "classes" / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "architectures": ["LlamaForSequenceClassification"]}))
    asked = {"model": str(file.parent), "model_impl": "transformers"}
    with pytest.raises(ConfigError, match=r"head for classes .* \(--model-impl transformers\); leave that out"):
        resolve(asked, context="llm", environ={})


@pytest.mark.usefixtures("within")
def test_a_key_that_the_class_does_not_know_is_named_once(tiny_diffllama: Path) -> None:
    asked = {"model": str(tiny_diffllama), "hf_overrides": {"residual_multiplier": 0.22, "rope_parameters.turns": 3}}
    found = resolve(asked, context="llm", environ={})
    about = [warning for warning in found.warnings if "does not know" in warning]
    assert len(about) == 1
    assert (
        "class of 'diffllama' does not know; they are ignored: residual_multiplier, rope_parameters.turns" in about[0]
    )
    plain = resolve({"model": str(tiny_diffllama)}, context="llm", environ={})
    assert not any("does not know" in warning for warning in plain.warnings)


def test_the_second_start_asks_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"model_type": "diffllama", **SHAPE}
    spec = shaped_model(config, [], torch.float32, None).spec
    asked: list[bytes] = []
    monkeypatch.setattr(description, "_ask", lambda question: asked.append(question) or spec)
    kept = KeptSpecs(tmp_path / "new")
    assert describe(config, [], None, kept) == spec
    assert describe(config, [], None, kept) == spec
    assert len(asked) == 1

    describe({**config, "hidden_size": 32}, [], None, kept)
    describe(config, ["other.weight"], None, kept)
    describe(config, [], str(tmp_path), kept)
    describe(config, [], str(tmp_path), kept)  # a checkpoint's own code is asked each time
    assert len(asked) == 5
    for path in (tmp_path / "new").iterdir():
        path.write_text("half an ans")
    describe(config, [], None, kept)
    monkeypatch.setattr(kept_specs, "version", lambda package: "99.0")
    describe(config, [], None, kept)
    assert len(asked) == 7


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    taken = tmp_path / "file"
    taken.touch()
    kept = KeptSpecs(taken / "below")
    kept.keep(b"question", shaped_model({"model_type": "diffllama", **SHAPE}, [], torch.float32, None).spec)
    assert kept.find(b"question") is None


def test_who_can_be_built_is_known_without_an_import() -> None:
    assert builds({"model_type": "diffllama"}, trust_remote_code=False)
    assert not builds({"model_type": "t5"}, trust_remote_code=False)
    own_code = {"model_type": "mine", "auto_map": {"AutoConfig": "code.Config"}}
    assert not builds(own_code, trust_remote_code=False)
    assert builds(own_code, trust_remote_code=True)


@pytest.mark.models
def test_a_process_of_its_own_tells_the_shape(tmp_path: Path) -> None:
    config = {"model_type": "diffllama", **SHAPE}
    names = ["layers.0.mlp.up_proj.weight"]
    told = describe(config, names, None, KeptSpecs(None))
    assert told == shaped_model(config, names, torch.float32, None).spec
    assert told.renamed == {names[0]: "model.layers.0.mlp.up_proj.weight"}
