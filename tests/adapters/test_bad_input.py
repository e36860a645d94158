"""Whatever cannot be used is one sentence, and changes nothing else."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from core import SamplingParams
from core.api.errors import UserError
from tests.adapters.engines import AdapterEngine, bits_of, engine
from tests.adapters.made import save_adapter

PROMPT = [1, 40, 77, 90, 12]
ASKED = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True, logprobs=2)
FIRST = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def adapter(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(tiny_llama, tmp_path_factory.mktemp("adapters") / "good")


@pytest.fixture(scope="module")
def made(tiny_llama: Path, adapter: Path) -> Iterator[AdapterEngine]:
    with engine(tiny_llama, {"max_lora_rank": 8}) as one:
        one.load(adapter)
        yield one


def copied(adapter: Path, target: Path, config: Callable[[dict], None], tensors: Callable[[dict], None]) -> Path:
    target.mkdir()
    found = json.loads((adapter / "adapter_config.json").read_text())
    config(found)
    (target / "adapter_config.json").write_text(json.dumps(found))
    numbers = load_file(adapter / "adapter_model.safetensors")
    tensors(numbers)
    save_file(numbers, target / "adapter_model.safetensors")
    return target


def nothing(found: dict) -> None:
    pass


def setting(**values: object) -> Callable[[dict], None]:
    return lambda config: config.update(values)


def renamed(old: str, new: str) -> Callable[[dict], None]:
    def change(tensors: dict) -> None:
        for name in list(tensors):
            if old in name:
                tensors[name.replace(old, new)] = tensors.pop(name)

    return change


def replaced(name: str, value: torch.Tensor | None) -> Callable[[dict], None]:
    def change(tensors: dict) -> None:
        tensors.pop(name)
        if value is not None:
            tensors[name] = value

    return change


def with_magnitude_and_bias(tensors: dict) -> None:
    """Both for every module; peft refuses to make such an adapter."""
    for name, tensor in list(tensors.items()):
        if name.endswith("lora_B.weight"):
            module = name.removesuffix("lora_B.weight")
            tensors[f"{module}lora_magnitude_vector"] = torch.ones(len(tensor))
            tensors[f"{module}lora_B.bias"] = torch.ones(len(tensor))


def with_bias_of_b(tensors: dict) -> None:
    for name, tensor in list(tensors.items()):
        if name.endswith("q_proj.lora_B.weight"):
            tensors[name.replace("weight", "bias")] = torch.ones(len(tensor))


def with_bias_of_base(tensors: dict) -> None:
    tensors["base_model.model.model.layers.0.self_attn.q_proj.base_layer.bias"] = torch.ones(64)


REFUSED_BY_PEFT: list[tuple[Callable[[dict], None], Callable[[dict], None], str]] = [
    (
        setting(layers_to_transform=[99]),
        nothing,
        "names layer 99, but there is no tensor of such a layer; .*layers 0, 1, 2",
    ),
    (setting(layers_to_transform=99), nothing, "names layer 99"),
    (setting(layers_to_transform="x"), nothing, "layers_to_transform is 'x', expected a list"),
    (setting(layers_to_transform=[-1]), nothing, "expected a list of layers' numbers"),
    (setting(layers_to_transform=[0], layers_pattern="h"), nothing, r"are tensors of layers \(none\)"),
    (setting(layers_to_transform=[0], target_modules=".*proj"), nothing, "with a pattern as target_modules"),
    (setting(layers_pattern="layers"), nothing, "without layers_to_transform"),
    (setting(layers_to_transform=[0], layers_pattern="("), nothing, "no regular expression"),
    (setting(layers_to_transform=[0], layers_pattern=7), nothing, "expected a name such as 'layers'"),
    (setting(exclude_modules=7), nothing, "exclude_modules is 7, expected a list of names"),
    (setting(exclude_modules="["), nothing, "exclude_modules is '\\[', which is no regular expression"),
    (setting(target_modules=7), nothing, "target_modules is 7, expected a list of names"),
    (setting(target_modules="["), nothing, "target_modules is '\\[', which is no regular expression"),
    (setting(alpha_pattern=[]), nothing, "alpha_pattern is .*, expected an object"),
    (setting(bias="some"), nothing, "bias is 'some', expected one of none, all, lora_only"),
    (setting(init_lora_weights="nope"), nothing, "init_lora_weights is 'nope', expected one of"),
    (setting(task_type="nope"), nothing, "task_type is 'nope', expected one of"),
    (setting(lora_dropout=2.0), nothing, "lora_dropout is 2.0, expected a number from 0 to 1"),
    (setting(trainable_token_indices=[1, 2]), nothing, "but there is no tensor with rows of tokens"),
]
LEFT_OUT_BY_PEFT: list[tuple[Callable[[dict], None], Callable[[dict], None], str]] = [
    (setting(lora_alpha=0), nothing, "lora_alpha is 0, so the adapter changes nothing"),
    (
        setting(layers_to_transform=[0]),
        nothing,
        "layers_to_transform leaves its layer out, so peft would leave them out",
    ),
    (setting(exclude_modules=["q_proj"]), nothing, "q_proj, but exclude_modules names it"),
    (setting(exclude_modules=".*q_proj"), nothing, "q_proj, but exclude_modules names it"),
    (setting(target_modules=["q_proj"]), nothing, "target_modules does not name it"),
    (setting(target_modules=".*q_proj"), nothing, "target_modules does not name it"),
    (setting(target_modules=[]), nothing, "target_modules does not name it"),
    (nothing, with_bias_of_b, "lora_bias is False, but .*q_proj has a bias of B"),
    (nothing, with_bias_of_base, "it has a bias for .*q_proj, which has none in the model"),
]
"""Whatever peft would load without the part that a configuration and its tensors do not agree about."""
CASES: list[tuple[Callable[[dict], None], Callable[[dict], None], str]] = [
    (setting(peft_type="IA3"), nothing, "peft_type is 'IA3'"),
    (setting(use_rslorra=True), nothing, "the key 'use_rslorra' is unknown.*Did you mean 'use_rslora'"),
    (setting(init_lora_weights="pissa_niter_4"), nothing, "path_initial_model_for_weight_conversion"),
    (setting(use_qalora=True), nothing, "use_qalora is not served"),
    (setting(layer_replication=[[0, 2]]), nothing, "layer_replication is not served"),
    (setting(r=4), nothing, "has 8 rows, but its rank is 4"),
    (setting(rank_pattern={"(": 3}), nothing, "no regular expression"),
    (setting(rank_pattern={"(.*.*)*=": 3}), nothing, "may take too long to match"),
    (setting(alpha_pattern={r"(q_proj|k_proj|\w+)+": 3}), nothing, "may take too long to match"),
    (setting(rank_pattern=[1]), nothing, "expected an object"),
    (setting(lora_alpha="many"), nothing, "alpha 'many'"),
    (setting(use_dora=True), nothing, "no magnitude"),
    (setting(use_dora=True, lora_bias=True), with_magnitude_and_bias, "both a magnitude .DoRA. and a bias of B"),
    (setting(alora_invocation_tokens=["a"]), nothing, "expected a list of token ids"),
    (setting(modules_to_save=["score"]), nothing, "no tensor of such a module"),
    (setting(target_modules=["q_prj"]), nothing, "target_modules names 'q_prj'.*Did you mean 'q_proj'"),
    (
        setting(target_modules=None),
        renamed("q_proj", "q_prj"),
        r"model has no such matrix\. Names like it are .*q_proj",
    ),
    (nothing, renamed("lora_A", "lora_C"), "is of no kind"),
    (nothing, renamed("base_model.model.", ""), "is of no kind"),
    (nothing, replaced(FIRST, None), "has a matrix B but no A"),
    (
        nothing,
        replaced(FIRST, torch.zeros(8, 32)),
        "A of model.layers.0.self_attn.q_proj has 32 inputs.*64.*another base",
    ),
    (nothing, replaced(FIRST, torch.full((8, 64), torch.nan)), "not finite"),
    (nothing, replaced(FIRST, torch.zeros(8, 64, dtype=torch.int32)), "expected floating-point numbers"),
    (nothing, dict.clear, "changes no module"),
    *REFUSED_BY_PEFT,
    *LEFT_OUT_BY_PEFT,
]


@pytest.mark.parametrize(("config", "tensors", "words"), CASES)
def test_it_is_one_sentence(
    made: AdapterEngine, adapter: Path, tmp_path: Path, config: object, tensors: object, words: str
) -> None:
    bad = copied(adapter, tmp_path / "bad", config, tensors)  # type: ignore[arg-type]
    before = bits_of(made.run([(PROMPT, adapter)], ASKED)[0])
    with pytest.raises(UserError, match=words) as error:
        made.load(bad)
    assert "\n" not in str(error.value)
    assert bits_of(made.run([(PROMPT, adapter)], ASKED)[0]) == before


AGREE: list[Callable[[dict], None]] = [
    setting(layers_to_transform=[0, 1, 2], layers_pattern="layers"),
    setting(layers_to_transform=[0, 1, 2], layers_pattern=["h", "layers"]),
    setting(exclude_modules=["lm_head"]),
    setting(exclude_modules=".*head"),
    setting(target_modules=r".*\.(self_attn|mlp)\..*_proj"),
    setting(target_modules="(?:.*?(?:a|b).*?(?:c|d).*?)|(?:.*?.*?.*?.*)"),
    setting(target_modules="all-linear", target_parameters=["gate.weight"]),
    setting(layer_replication=[], init_lora_weights="orthogonal", task_type=None, layers_to_transform=[]),
]
"""Configurations that say the same as the tensors. The longest pattern may take too long to be matched, so that the names
of the tensors decide alone.
"""


@pytest.mark.parametrize("config", AGREE)
def test_what_agrees_is_served(made: AdapterEngine, adapter: Path, tmp_path: Path, config: object) -> None:
    same = copied(adapter, tmp_path / "same", config, nothing)  # type: ignore[arg-type]
    made.load(same)
    assert bits_of(made.run([(PROMPT, same)], ASKED)[0]) == bits_of(made.run([(PROMPT, adapter)], ASKED)[0])
    made.drop(same)


def test_a_rank_over_the_limit_names_the_argument(made: AdapterEngine, tiny_llama: Path, tmp_path: Path) -> None:
    wide = save_adapter(tiny_llama, tmp_path / "wide", r=9)
    with pytest.raises(UserError, match="is 9; --max-lora-rank allows 8"):
        made.load(wide)


def test_modules_outside_of_the_targets_are_refused(tiny_llama: Path, adapter: Path) -> None:
    words = r"changes .*which --lora-target-modules q_proj mlp\.down_proj leaves out"
    with (
        engine(tiny_llama, {"lora_target_modules": ["q_proj", "mlp.down_proj"]}) as made,
        pytest.raises(UserError, match=words),
    ):
        made.load(adapter)


def test_a_cut_file_and_a_missing_folder(made: AdapterEngine, adapter: Path, tmp_path: Path) -> None:
    cut = copied(adapter, tmp_path / "cut", nothing, nothing) / "adapter_model.safetensors"
    cut.write_bytes(cut.read_bytes()[:-100])
    for path in (cut.parent, tmp_path / "absent"):
        with pytest.raises(UserError):
            made.load(path)


def test_a_pickle_is_read_as_records_and_its_code_never_runs(
    made: AdapterEngine, adapter: Path, tmp_path: Path
) -> None:
    tensors = load_file(adapter / "adapter_model.safetensors")
    folder = copied(adapter, tmp_path / "pickled", nothing, nothing)
    (folder / "adapter_model.safetensors").unlink()
    torch.save(tensors, folder / "adapter_model.bin")
    made.load(folder)
    assert made.digests[folder] == made.digests[adapter]  # the same numbers are the same adapter

    class Evil:
        def __reduce__(self) -> tuple:
            return (Path.write_text, (tmp_path / "ran", "code"))

    evil = folder.rename(tmp_path / "evil")
    torch.save(tensors | {"x": Evil()}, evil / "adapter_model.bin")
    with pytest.raises(UserError):
        made.load(evil)
    assert not (tmp_path / "ran").exists()


def test_an_engine_without_adapters_says_which_argument_is_missing(tiny_llama: Path, adapter: Path) -> None:
    with engine(tiny_llama) as made, pytest.raises(UserError, match="enable_lora=True"):
        made.load(adapter)
