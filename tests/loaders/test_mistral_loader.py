"""Mistral's own layout against the models of transformers that it was made from."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MistralConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from core.api.errors import CheckpointError, ConfigError
from core.plugin.registry import PluginRegistry
from core_config.resolve import resolve
from core_loaders.mistral import manifest as mistral_manifest
from core_loaders.mistral.loader import MistralLoader
from core_loaders.safetensors.loader import SafetensorsLoader
from core_runtime.layers.rotary import inverse_frequencies
from core_runtime.models.families import decoder_spec
from core_runtime.specs.checkpoint import FileFacts
from tests.tiny_models import SHAPE, save_checkpoint

NAMES = (
    ("model.embed_tokens", "tok_embeddings"),
    ("model.norm", "norm"),
    ("lm_head", "output"),
    (r"model\.(layers\.\d+)\.input_layernorm", r"\1.attention_norm"),
    (r"model\.(layers\.\d+)\.post_attention_layernorm", r"\1.ffn_norm"),
    (r"model\.(layers\.\d+)\.self_attn\.([qkvo])_proj", r"\1.attention.w\2"),
    (r"model\.(layers\.\d+)\.mlp\.gate_proj", r"\1.feed_forward.w1"),
    (r"model\.(layers\.\d+)\.mlp\.down_proj", r"\1.feed_forward.w2"),
    (r"model\.(layers\.\d+)\.mlp\.up_proj", r"\1.feed_forward.w3"),
    (r"model\.(layers\.\d+)\.block_sparse_moe\.(.*)", r"\1.feed_forward.\2"),
)


def consolidated(tensors: dict[str, torch.Tensor], head_dim: int) -> dict[str, torch.Tensor]:
    """The tensors under Mistral's names, rows of rotated heads as neighbouring pairs."""
    found = {}
    for name, tensor in tensors.items():
        for pattern, to in NAMES:
            match = re.fullmatch(pattern + r"\.weight", name) or re.fullmatch(pattern, name)
            if match:
                renamed = match.expand(to)
                new = renamed if renamed.endswith(".weight") else renamed + ".weight"
                break
        else:
            raise AssertionError(name)
        if ".w" in new and re.search(r"attention\.w[qk]\.", new):
            heads = tensor.shape[0] // head_dim
            tensor = tensor.view(heads, 2, head_dim // 2, -1).transpose(1, 2).reshape(tensor.shape)
        found[new] = tensor.contiguous()
    return found


def params_of(config: dict[str, object], **more: object) -> dict[str, object]:
    return {
        "dim": config["hidden_size"],
        "n_layers": config["num_hidden_layers"],
        "head_dim": config["head_dim"],
        "hidden_dim": config["intermediate_size"],
        "n_heads": config["num_attention_heads"],
        "n_kv_heads": config["num_key_value_heads"],
        "norm_eps": config["rms_norm_eps"],
        "vocab_size": config["vocab_size"],
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "max_seq_len": config["max_position_embeddings"],
        "sliding_window": config.get("sliding_window"),
        **more,
    }


@pytest.fixture(scope="module")
def dense(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("mistral")
    config = MistralConfig(**SHAPE, head_dim=16, sliding_window=24)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sparse(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("mixtral"), family="mixtral", head_dim=16)


def written(source: Path, out: Path, **more: object) -> tuple[dict[str, torch.Tensor], Path]:
    """The model in Mistral's layout, and its tensors as transformers has them."""
    config = json.loads((source / "config.json").read_text())
    tensors = load_file(source / "model.safetensors")
    out.mkdir()
    (out / "params.json").write_text(json.dumps(params_of(config, **more)))
    save_file(consolidated(tensors, config["head_dim"]), out / "consolidated.safetensors")
    return tensors, out


def assert_same(folder: Path, source: Path, expected: dict[str, torch.Tensor]) -> None:
    loader = MistralLoader()
    manifest = loader.resolve(str(folder))
    assert set(manifest.tensors) == set(expected)
    for name, tensor in loader.iter(manifest, list(manifest.tensors)):
        assert manifest.tensors[name].shape == tuple(tensor.shape), name
        assert tensor.dtype is expected[name].dtype and torch.equal(tensor, expected[name]), name
    assert decoder_spec(manifest.config) == decoder_spec(SafetensorsLoader().resolve(str(source)).config)


def test_a_dense_model_is_what_transformers_has(dense: Path, tmp_path: Path) -> None:
    expected, folder = written(dense, tmp_path / "model")
    assert_same(folder, dense, expected)
    arguments = {"model": str(folder), "device": "cpu"}
    resolution = resolve(arguments, context="llm", registry=PluginRegistry(), environ={})
    assert resolution.engine.plugins.loader == "mistral" and resolution.engine.model.dtype == "bfloat16"


def test_the_form_of_the_configuration_is_what_was_asked_for(dense: Path, tmp_path: Path) -> None:
    def resolved(folder: Path, form: str) -> str:
        arguments = {"model": str(folder), "device": "cpu", "config_format": form}
        return resolve(arguments, context="llm", registry=PluginRegistry(), environ={}).engine.plugins.loader

    _, folder = written(dense, tmp_path / "model")
    assert resolved(folder, "mistral") == "mistral" and resolved(dense, "hf") == "safetensors"
    with pytest.raises(ConfigError, match="in the form mistral; leave it out"):
        resolved(folder, "hf")
    with pytest.raises(ConfigError, match="in the form hf; add --load-format mistral"):
        resolved(dense, "mistral")


@pytest.mark.parametrize("stacked", [False, True])
def test_experts_are_what_transformers_has(stacked: bool, sparse: Path, tmp_path: Path) -> None:
    expected, folder = written(sparse, tmp_path / "model", moe={"num_experts": 6, "num_experts_per_tok": 2})
    if stacked:
        stack_experts(folder / "consolidated.safetensors")
    assert_same(folder, sparse, expected)


def stack_experts(path: Path) -> None:
    """The experts' matrices in one tensor a layer, as the first files of Mixtral have them."""
    tensors = load_file(path)
    stacks: dict[str, list[torch.Tensor]] = {}
    for name in sorted(tensors):
        found = re.fullmatch(r"(layers\.\d+)\.feed_forward\.experts\.\d+\.(w\d)\.weight", name)
        if found:
            tensor = tensors.pop(name)
            stacks.setdefault(f"{found[1]}.block_sparse_moe.{found[2]}", []).append(
                tensor.t() if found[2] == "w2" else tensor
            )
    renamed = {name.replace("feed_forward.gate", "block_sparse_moe.gate"): tensor for name, tensor in tensors.items()}
    save_file(renamed | {name: torch.cat(parts) for name, parts in stacks.items()}, path)


def test_shards_are_one_model(dense: Path, tmp_path: Path) -> None:
    expected, folder = written(dense, tmp_path / "model")
    tensors = load_file(folder / "consolidated.safetensors")
    (folder / "consolidated.safetensors").unlink()
    names = list(tensors)
    for number, part in enumerate((names[::2], names[1::2]), 1):
        save_file({name: tensors[name] for name in part}, folder / f"consolidated-{number:05}-of-00002.safetensors")
    assert_same(folder, dense, expected)


def changed(folder: Path, **params: object) -> dict[str, object]:
    path = folder / "params.json"
    values = {**json.loads(path.read_text()), **params}
    path.write_text(json.dumps({key: value for key, value in values.items() if value != "absent"}))
    return MistralLoader().resolve(str(folder)).config


def test_parameters_have_their_usual_values(dense: Path, tmp_path: Path) -> None:
    _, folder = written(dense, tmp_path / "model")
    assert changed(folder, rope_theta="absent")["rope_theta"] == 10_000.0
    plain = changed(folder, sliding_window="absent", max_seq_len="absent")
    assert plain["rope_theta"] == 1e6 and plain["sliding_window"] is None and plain["max_position_embeddings"] == 32768
    assert plain["dtype"] == "bfloat16" and plain["eos_token_id"] == 2
    kinds = changed(folder, sliding_window=[None, 24, 24])
    assert kinds["layer_types"] == ["full_attention", "sliding_attention", "sliding_attention"]
    assert kinds["model_type"] == "ministral" and kinds["sliding_window"] == 24
    assert changed(folder, sliding_window=None, tied_embeddings=True)["tie_word_embeddings"] is True


SCALED = {"beta": 0.25, "original_max_position_embeddings": 64}
STRETCHED = {"yarn": {"factor": 4.0, "original_max_position_embeddings": 64, "beta": 16.0, "alpha": 2.0}}


@pytest.mark.parametrize("applies", [True, False])
def test_a_stretched_rotation_is_transformers_own(applies: bool, dense: Path, tmp_path: Path) -> None:
    _, folder = written(dense, tmp_path / "model")
    yarn = {**STRETCHED["yarn"], "apply_scale": applies}
    config = changed(folder, yarn=yarn, sliding_window=None)
    theirs = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "beta_fast": 16.0,
        "beta_slow": 2.0,
        "rope_theta": config["rope_parameters"]["rope_theta"],
    }
    if not applies:
        theirs["attention_factor"] = 1.0
    length = int(4 * yarn["original_max_position_embeddings"])
    shape = {**SHAPE, "max_position_embeddings": length}
    reference = MistralConfig(**shape, head_dim=16, rope_parameters=theirs)
    frequencies, stretch = ROPE_INIT_FUNCTIONS["yarn"](reference, device="cpu")
    rope = decoder_spec(config).blocks[0].rope
    assert rope.attention_factor == pytest.approx(stretch)
    torch.testing.assert_close(inverse_frequencies(rope, 16), frequencies.double(), rtol=1e-6, atol=0)


def test_queries_scaled_by_their_position_are_those_of_ministral(dense: Path, tmp_path: Path) -> None:
    _, folder = written(dense, tmp_path / "model")
    yarn = {**STRETCHED["yarn"], "apply_scale": False}
    config = changed(folder, yarn=yarn, llama_4_scaling=SCALED, sliding_window=None)
    assert config["model_type"] == "ministral3" and config["rope_parameters"]["llama_4_scaling_beta"] == 0.25
    decoder_spec(config)


def narrow(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Matrices of the layers in 8-bit floats, each with a scale for its weights and one for its inputs."""
    found: dict[str, torch.Tensor] = {}
    for name, tensor in tensors.items():
        if ".layers." not in name or tensor.dim() != 2:
            found[name] = tensor
            continue
        scale = tensor.abs().max().float() / 448
        found[name] = (tensor.float() / scale).to(torch.float8_e4m3fn)
        found[name + "_scale"] = scale
        found[name.removesuffix("weight") + "input_scale"] = torch.tensor(0.5)
    return found


@pytest.mark.parametrize(("scheme", "activations"), [("TENSOR", "static"), ("NO_SCALES", "dynamic")])
def test_matrices_in_8_bit_floats(scheme: str, activations: str, dense: Path, tmp_path: Path) -> None:
    declared = {"qformat_weight": "fp8_e4m3", "qscheme_act": scheme}
    expected, folder = written(dense, tmp_path / "model", quantization=declared, sliding_window=None)
    expected = narrow(expected)
    head_dim = json.loads((dense / "config.json").read_text())["head_dim"]
    matrices = {name: tensor for name, tensor in expected.items() if name.endswith(".weight")}
    stored = consolidated(matrices, head_dim)
    names = dict(zip(matrices, stored, strict=True))
    for name, tensor in expected.items():
        if not name.endswith(".weight"):
            matrix, _, kind = name.rpartition(".")
            stem = names[matrix + ".weight"].removesuffix("weight")
            stored[stem + {"weight_scale": "qscale_weight", "input_scale": "qscale_act"}[kind]] = tensor
    save_file(stored, folder / "consolidated.safetensors")
    loader = MistralLoader()
    manifest = loader.resolve(str(folder))
    assert manifest.config["quantization_config"] == {"quant_method": "fp8", "activation_scheme": activations}
    found = dict(loader.iter(manifest, list(manifest.tensors)))
    assert found.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(found[name].float(), tensor.float()), name
    arguments = {"model": str(folder), "device": "cpu"}
    resolution = resolve(arguments, context="llm", registry=PluginRegistry(), environ={})
    assert resolution.engine.plugins.quantization == "fp8"


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"yarn": {"factor": 4, "gamma": 1}}, "yarn.gamma is not known"),
        ({"yarn": {"factor": "4"}}, "yarn.factor is '4'"),
        ({"llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 64}}, "without yarn"),
        (
            {**STRETCHED, "llama_4_scaling": {"beta": 0.1, "original_max_position_embeddings": 9}},
            "expected that of yarn",
        ),
        ({**STRETCHED, "llama_4_scaling": SCALED}, "together with windows"),
        ({"quantization": {"qformat_weight": "int3"}}, "quantization is .*expected qformat_weight fp8_e4m3"),
        ({"quantization": {"qformat_weight": "fp8_e4m3", "qscheme_act": "ROW"}}, "quantization is"),
        ({"vision_encoder": {"hidden_size": 4}}, "parameter vision_encoder"),
        ({"dim": "64"}, "dim is '64'"),
        ({"n_layers": "absent"}, "n_layers is None"),
        ({"n_heads": 8}, r"attention\.wq\.weight.* 8 heads of 16"),
        ({"sliding_window": [24, 16, 8]}, "sliding_window is"),
        ({"moe": {"num_experts": 6, "num_experts_per_tok": 2, "num_shared_experts": 1}}, "moe is"),
    ],
)
def test_what_is_not_known_is_refused(params: dict[str, object], reason: str, dense: Path, tmp_path: Path) -> None:
    _, folder = written(dense, tmp_path / "model")
    with pytest.raises(CheckpointError, match=reason):
        changed(folder, **params)


def test_unknown_names_and_stacks_are_refused(dense: Path, tmp_path: Path) -> None:
    _, folder = written(dense, tmp_path / "model")
    path = folder / "consolidated.safetensors"
    tensors = load_file(path)
    for name, reason in (
        ("vision_encoder.ln_pre.weight", "no place in a language model"),
        ("layers.0.block_sparse_moe.w1", "cannot be cut into 0 experts"),
    ):
        save_file(tensors | {name: torch.zeros(8, 8)}, path)
        with pytest.raises(CheckpointError, match=rf"consolidated\.safetensors: tensor '{name}'.*{reason}"):
            MistralLoader().resolve(str(folder))
    path.unlink()
    with pytest.raises(CheckpointError, match=r"no consolidated\*\.safetensors"):
        MistralLoader().resolve(str(folder))
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(CheckpointError, match=r"no params\.json"):
        MistralLoader().resolve(str(folder))


def test_claims() -> None:
    def claim(*names: str) -> str | None:
        return mistral_manifest.core_claim(FileFacts("m", "/m", True, names))

    assert claim("params.json", "consolidated.safetensors")
    assert not claim("params.json", "consolidated.safetensors", "config.json") and not claim("params.json")
