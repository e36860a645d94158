"""Every family of the table with an adapter on all its matrices: logits equal peft's."""

import re
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from core.api.errors import UserError
from core_models import remote
from core_runtime.models.families import families
from tests.adapters.families import AdaptedHarness, save_base, saved_with_logits
from tests.families.architectures import ENCODERS, WRAPPERS, variants
from tests.families.expected import NAMED, REFUSED
from tests.families.wrappers import WRAPPED_TEXT

PROMPT = [4 + number * 7 % 250 for number in range(19)]
QUICK = ("gpt2", "phi3", "mixtral", "deepseek_v3")
"""Turned and fused matrices, experts in two layouts, latents."""

TEXT = r".*(language_model|text_model).*(q_proj|k_proj|v_proj|o_proj|gate_proj|up_proj|down_proj)"
IN_PROJ = ["in_proj"]
MAMBA = ["in_proj", "x_proj"]
SHARED = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_up_proj", "down_proj"]
LATENT = ["q_a_proj", "q_b_proj", "o_proj", "gate_proj", "up_proj"]
TARGETS: dict[str, Any] = {
    "mamba": MAMBA, "mamba2": IN_PROJ, "falcon_mamba": MAMBA, "jamba": [*MAMBA, "q_proj", "out_proj", "down_proj"],
    "nemotron_h": ["in_proj", "q_proj", "o_proj", "up_proj"], "falcon_h1": ["in_proj", "q_proj", "up_proj"],
    "deepseek_v32": LATENT, "glm_moe_dsa": LATENT, "longcat_flash": LATENT[:3],
    "axk2": ["q_a_proj", "q_gate_proj", "o_proj", "gate_proj", "up_proj"],
    "zamba2": ["in_proj", *SHARED],
    "kimi_linear": ["q_proj", "f_b_proj", "g_b_proj", "o_proj", "up_proj"],
    "phimoe": ["q_proj"], "llama4_text": ["q_proj", "o_proj"],
    "bert": ["query", "key", "value", "intermediate.dense"], "roberta": ["query", "output.dense"],
    "xlm-roberta": ["query", "output.dense"], "camembert": ["query", "output.dense"],
}  # fmt: skip
"""Targets where peft refuses or fails with all, or where parts of the model are not served."""
UNFIT = {
    "phi4_multimodal": "peft changes its towers",
    "llama4": "peft fails with its experts",
    "nomic_bert": "modules of transformers are fused otherwise in files",
    "gte": "modules of transformers are fused otherwise in files",
    "jina_embeddings_v3": "modules of transformers are fused otherwise in files",
    "hrm_text": "peft has no list of its layers",
    "xlstm": "transformers' own forward fails next to peft",
}

MODEL_TYPES = sorted(
    {
        model_type
        for family in families()
        for model_type in (*family.model_types, *family.wrappers)
        if model_type not in WRAPPED_TEXT and variants(model_type)
    }
    - {model_type for family in remote.ROWS for model_type in family.model_types}
    - set(NAMED)
    - set(UNFIT)
    - {model_type for model_type, _ in REFUSED}
)


def _rows() -> list[Any]:
    marks = {name: () if name in QUICK else pytest.mark.models for name in MODEL_TYPES}
    return [pytest.param(name, marks=marks[name]) for name in MODEL_TYPES]


def distance(model_type: str, folder: Path, **options: Any) -> float:
    """How far our logits are from peft's, as a part of the largest."""
    base = save_base(folder / "base", model_type)
    wanted = saved_with_logits(base, folder / "adapter", model_type, PROMPT, **options)
    found = AdaptedHarness(base, folder / "adapter").logits(PROMPT, model_type in ENCODERS)
    return float((found - wanted).abs().max() / wanted.abs().max())


@pytest.mark.parametrize("model_type", _rows())
def test_logits_are_those_of_peft(model_type: str, tmp_path: Path) -> None:
    targets = TARGETS.get(model_type, TEXT if model_type in WRAPPERS else "all-linear")
    assert distance(model_type, tmp_path, target_modules=targets) <= 1e-4


@pytest.mark.models
@pytest.mark.parametrize("target", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"])
@pytest.mark.parametrize("options", [{}, {"use_dora": True}], ids=["LoRA", "DoRA"])
def test_each_matrix_alone(target: str, options: dict[str, Any], tmp_path: Path) -> None:
    assert distance("llama", tmp_path, target_modules=[target], **options) <= 1e-4


@pytest.mark.models
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_each_matrix_alone_in_every_family(model_type: str, tmp_path: Path) -> None:
    """A change of one matrix is not hidden among those of others."""
    base = save_base(tmp_path / "base", model_type)
    text = model_type in WRAPPERS
    targets = TARGETS.get(model_type, TEXT if text else "all-linear")
    saved_with_logits(base, tmp_path / "all", model_type, PROMPT, target_modules=targets)
    far: dict[str, float] = {}
    for name in names_in(tmp_path / "all"):
        one = rf".*(language_model|text_model).*\.{re.escape(name)}" if text else [name]
        wanted = saved_with_logits(base, tmp_path / name, model_type, PROMPT, target_modules=one)
        found = AdaptedHarness(base, tmp_path / name).logits(PROMPT, model_type in ENCODERS)
        far[name] = float((found - wanted).abs().max() / wanted.abs().max())
    assert far and {name: distance for name, distance in far.items() if not distance <= 1e-4} == {}


def names_in(adapter: Path) -> list[str]:
    """The last parts of the names of changed modules, with the part before a number: it is the place in a list.

    Stacks of experts are left out.
    """
    found = set()
    for tensor in load_file(adapter / "adapter_model.safetensors"):
        before, _, name = tensor.partition(".lora_")[0].rpartition(".")
        if name in ("experts", "base_layer"):  # parameters of all experts, which are no module that peft could change
            continue
        found.add(f"{before.rpartition('.')[2]}.{name}" if name.isdigit() else name)
    return sorted(found)


BIASES: dict[str, dict[str, Any]] = {
    "all": {"bias": "all"},
    "of changed matrices": {"bias": "lora_only"},
    "of changed matrices and of B": {"bias": "lora_only", "lora_bias": True},
    "with DoRA": {"bias": "lora_only", "use_dora": True},
    "all with DoRA": {"bias": "all", "use_dora": True},
}
"""peft itself refuses biases of B with DoRA."""


@pytest.mark.models
@pytest.mark.parametrize("options", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("model_type", ["qwen2", "gpt2"])
def test_biases(model_type: str, options: dict[str, Any], tmp_path: Path) -> None:
    assert distance(model_type, tmp_path, **options) <= 1e-4


@pytest.mark.parametrize("options", [{"use_dora": True}, {"lora_bias": True}], ids=["DoRA", "biases of B"])
def test_vectors_of_latent_projections(options: dict[str, Any], tmp_path: Path) -> None:
    targets = ["kv_a_proj_with_mqa", "kv_b_proj", "q_b_proj"]
    assert distance("deepseek_v3", tmp_path, target_modules=targets, **options) <= 1e-4


NORMS: dict[str, list[str]] = {
    "gpt2": ["ln_1", "ln_2", "ln_f"],
    "deepseek_v3": ["q_a_layernorm", "kv_a_layernorm", "input_layernorm", "post_attention_layernorm", "norm"],
    "qwen3": ["q_norm", "k_norm", "norm"],
    "olmo2": ["q_norm", "k_norm", "post_feedforward_layernorm"],
    "cohere": ["input_layernorm", "norm"],
    "bloom": ["word_embeddings_layernorm", "ln_f"],
    "gemma3_text": ["q_norm", "pre_feedforward_layernorm"],
    "stablelm": ["input_layernorm", "post_attention_layernorm"],
    "bert": ["LayerNorm"],
}
"""Norms of means and of squares, of heads and of all heads, before and after their half, of latents and of the embedding."""


@pytest.mark.parametrize(
    "model_type", [pytest.param(name, marks=() if name == "gpt2" else pytest.mark.models) for name in NORMS]
)
def test_saved_norms(model_type: str, tmp_path: Path) -> None:
    targets = TARGETS.get(model_type, "all-linear")
    assert distance(model_type, tmp_path, target_modules=targets, modules_to_save=NORMS[model_type]) <= 1e-4


@pytest.mark.parametrize("use", [1, 4])
def test_each_use_of_a_shared_block_has_a_change_of_its_own(use: int, tmp_path: Path) -> None:
    """Layers 1 and 4 share their matrices, whose modules are two: a change of one is none of the other."""
    targets = rf".*layers\.{use}\.shared_transformer.*({'|'.join(SHARED)})"
    assert distance("zamba2", tmp_path, target_modules=targets) <= 1e-4


@pytest.mark.models
@pytest.mark.parametrize("model_type", ["deepseek_v32", "glm_moe_dsa"])
def test_an_index_that_would_choose_everything_is_refused_with_the_reason(model_type: str, tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"indexer\.\w+, but the model has no such matrix \(.* no longer than index_topk"
    ):
        distance(model_type, tmp_path)


@pytest.mark.models
def test_the_small_matrices_of_a_shared_block_are_refused(tmp_path: Path) -> None:
    """A module of the first layer stands for the same matrix as one of the layer that uses it."""
    with pytest.raises(UserError, match=r"gate_up_proj_adapter_list\.\d\.\d, but the model has no such matrix"):
        distance("zamba2", tmp_path, target_modules=r".*adapter_list\.\d\.\d")


def test_a_tower_is_refused_with_names_of_the_text(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "qwen3_vl")
    saved_with_logits(base, tmp_path / "adapter", "qwen3_vl", PROMPT, target_modules=r".*visual.*attn\.proj")
    with pytest.raises(
        UserError, match=r"visual\.blocks\.0\.attn\.proj, which is of a tower or its connector; .* target_modules"
    ):
        AdaptedHarness(base, tmp_path / "adapter")
