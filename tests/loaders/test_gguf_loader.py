"""The GGUF loader against transformers' reading of the same files."""

from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from gguf import GGMLQuantizationType
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from core.api.errors import CheckpointError
from core.api.specs import DensePlan, LayerSpec
from core_loaders.gguf import manifest as gguf_manifest
from core_loaders.gguf.loader import GGUFLoader
from core_quantization.gguf.method import GGUFMethod
from core_runtime.specs.checkpoint import FileFacts
from tests.loaders.gguf_files import HIDDEN, LAYERS, write_gguf
from tests.real_models import gemma3_path, smollm2_path
from tests.torch_free import run_torch_free

ARCHITECTURES = ["llama", "gemma3"]


def canonical_values(path: Path) -> dict[str, torch.Tensor]:
    loader = GGUFLoader()
    manifest = loader.resolve(str(path))
    method = GGUFMethod(manifest, "int8")
    found = {}
    for name, tensor in loader.iter(manifest, list(manifest.tensors)):
        spec = LayerSpec(name.removesuffix(".weight"), "linear", manifest.tensors[name].shape)
        packed = tensor.dim() == 2 and not isinstance(method.plan(spec), DensePlan)
        found[name] = method.pack(spec, {name: tensor}).dequantize() if packed else tensor.float().clone()
    return found


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_configuration_equals_transformers(arch: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", arch)
    config = GGUFLoader().resolve(str(path)).config
    expected = AutoConfig.from_pretrained(path.parent, gguf_file=path.name)
    same = [
        "model_type", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
        "num_key_value_heads", "rms_norm_eps", "max_position_embeddings", "tie_word_embeddings", "attention_bias",
        "bos_token_id", "eos_token_id",
    ]  # fmt: skip
    if arch == "llama":
        same += ["hidden_act", "mlp_bias", "vocab_size"]
        assert config["rope_theta"] == expected.rope_parameters["rope_theta"]
    else:
        same += [
            "sliding_window",
            "layer_types",
            "hidden_activation",
            "final_logit_softcapping",
            "attn_logit_softcapping",
        ]
        assert config["rope_theta"] == expected.rope_parameters["full_attention"]["rope_theta"]
        assert config["rope_local_base_freq"] == expected.rope_parameters["sliding_attention"]["rope_theta"]
    for key in same:
        assert config[key] == getattr(expected, key), key


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("quant", ["Q4_1", "Q8_0", "F32", "F16"])
def test_values_equal_transformers(arch: str, quant: str, tmp_path: Path) -> None:
    """Names, row order of rotary heads, norm offsets and packed values, all at once."""
    path = write_gguf(tmp_path / "m.gguf", arch, GGMLQuantizationType[quant])
    found = canonical_values(path)
    model = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    expected = {name: value for name, value in model.state_dict().items() if name != "lm_head.weight"}
    assert set(found) == set(expected)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name


def test_facts_of_the_real_models() -> None:
    smollm2, gemma3 = (GGUFLoader().resolve(str(path)) for path in (smollm2_path(), gemma3_path()))
    assert smollm2.config["rope_theta"] == 100000.0 and smollm2.config["head_dim"] == 64
    assert smollm2.generation["eos_token_id"] == 2 and "<|im_start|>" in (smollm2.tokenizer.chat_template or "")
    assert smollm2.tensors["model.embed_tokens.weight"].shape == (49152, 576)
    assert gemma3.config["layer_types"].count("full_attention") == 3 and gemma3.config["sliding_window"] == 512
    assert gemma3.config["query_pre_attn_scalar"] == 256 and gemma3.config["vocab_size"] == 262144
    assert gemma3.generation["eos_token_id"] == [1, 106]
    assert gemma3.tokenizer.vocabulary is not None and gemma3.tokenizer.vocabulary.add_bos


def test_resolve_imports_no_torch(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    imports = "from core_loaders.gguf.manifest import core_load; from core.plugin.hookspecs import LoadContext"
    run_torch_free(f"{imports}; core_load(LoadContext()).resolve({str(path)!r})")


def resident_bytes(path: Path) -> int:
    """Bytes of a mapped file that are in this process' memory now."""
    maps = psutil.Process().memory_maps(grouped=True)
    return sum(entry.rss for entry in maps if entry.path == str(path))


def test_pages_of_the_file_are_given_back() -> None:
    path = smollm2_path().resolve()
    loader = GGUFLoader()
    manifest = loader.resolve(str(path))
    reads = [name for name in manifest.tensors if "embed" not in name]
    resident = []
    for number, (_, tensor) in enumerate(loader.iter(manifest, reads)):
        tensor.sum()
        if number % 8 == 0:  # the kernel takes a while to count them
            resident.append(resident_bytes(path))
    total = sum(manifest.tensors[name].nbytes for name in reads)
    assert total > 60e6 and 0 < max(resident) < 20e6


def test_llama3_rotary_divisors_become_parameters(tmp_path: Path) -> None:
    parameters = {
        "rope_type": "llama3",
        "rope_theta": 50000.0,
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    config = LlamaConfig(hidden_size=HIDDEN, num_attention_heads=4, head_dim=16, rope_parameters=parameters)
    scaled, _ = ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
    plain = 1.0 / (50000.0 ** (torch.arange(0, 16, 2) / 16))
    divisors = (plain / scaled).numpy().astype(np.float32)
    path = write_gguf(tmp_path / "m.gguf", tensors={"rope_freqs.weight": divisors})
    scaling = GGUFLoader().resolve(str(path)).config["rope_scaling"]
    assert scaling == {key: value for key, value in parameters.items() if key != "rope_theta"}
    path = write_gguf(tmp_path / "other.gguf", tensors={"rope_freqs.weight": divisors * 1.5})
    with pytest.raises(CheckpointError, match="rope_freqs"):
        GGUFLoader().resolve(str(path))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"llama.rope.scaling.factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 2.0}),
        ({"llama.rope.scaling.factor": 4.0, "llama.rope.scale_linear": 2.0}, {"rope_type": "linear", "factor": 4.0}),
        ({"llama.rope.scaling.type": "none", "llama.rope.scaling.factor": 4.0}, None),
        ({"llama.rope.scaling.factor": 0.0}, None),
        ({"llama.attention.causal": True, "llama.rope.scaling.finetuned": True, "llama.expert_count": 0}, None),
    ],
)
def test_rotary_scaling_is_read_as_llama_cpp_does(metadata, expected: object, tmp_path: Path) -> None:
    """`llama_model::load_hparams`: without a type it is linear, `scale_linear` is an older name, and 0 is none."""
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata)
    assert GGUFLoader().resolve(str(path)).config.get("rope_scaling") == expected


def test_gemma3_metadata_is_read_as_llama_cpp_does(tmp_path: Path) -> None:
    metadata = {
        "gemma3.attention.sliding_window_pattern": 2,
        "gemma3.rope.freq_base_swa": 20000.0,
        "gemma3.final_logit_softcapping": 30.0,
    }
    path = write_gguf(tmp_path / "m.gguf", "gemma3", metadata=metadata)
    config = GGUFLoader().resolve(str(path)).config
    assert config["layer_types"] == ["sliding_attention", "full_attention"]
    assert config["rope_local_base_freq"] == 20000.0
    assert config["final_logit_softcapping"] == 30.0
    path = write_gguf(tmp_path / "full.gguf", "gemma3", metadata={"gemma3.attention.sliding_window": None})
    config = GGUFLoader().resolve(str(path)).config
    assert config["layer_types"] == ["full_attention", "full_attention"]


@pytest.mark.parametrize(
    ("metadata", "tensors", "expected"),
    [
        ({"llama.block_count": 1_000_000}, {}, "block_count.*1000000.*an integer from 1"),
        ({"llama.block_count": LAYERS + 1}, {}, "model.layers.2.*3 layers are announced"),
        ({"llama.block_count": LAYERS - 1}, {}, "lies beyond the 1 layers"),
        ({"llama.context_length": 0}, {}, "context_length.*is 0"),
        ({"llama.context_length": None}, {}, "context_length.*is missing"),
        ({"llama.rope.freq_base": float("nan")}, {}, "freq_base.*nan"),
        ({"llama.attention.head_count_kv": 3}, {}, "evenly"),
        ({"llama.embedding_length": 32}, {}, "the configuration implies"),
        ({"llama.rope.scaling.type": "longrope"}, {}, "longrope.*not supported"),
        ({"split.count": 4}, {}, "one of 4 parts of a model, which its name must say"),
        ({}, {"blk.0.attn_qq.weight": np.zeros((4, 4), np.float32)}, "attn_qq.*Did you mean 'attn_q.weight'"),
        ({}, {"blk.1.ffn_up.weight": None}, "model.layers.1.mlp.up_proj.weight"),
        ({}, {"token_embd.weight": None}, "token_embd"),
        ({"tokenizer.ggml.padding_token_id": 5000}, {}, "padding_token_id.*5000"),
        ({"llama.attention.causal": False}, {}, "llama.attention.causal.*is False.*not understood"),
        ({"llama.logit_scale": 2.0}, {}, "llama.logit_scale"),
        ({"llama.expert_count": 8}, {}, "'model.layers.0.block_sparse_moe.gate.weight'"),
        (
            {},
            {"blk.1.attn_k.bias": np.zeros(32, np.float32)},
            "'blk.1.attn_k.bias' is there and 'blk.0.attn_q.bias' is not",
        ),
        ({}, {"output_norm.weight": np.ones(HIDDEN, np.int8)}, "'output_norm.weight' is of type I8"),
    ],
)
def test_contradictions_are_named(metadata, tensors, expected: str, tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", metadata=metadata, tensors=tensors)
    with pytest.raises(CheckpointError, match=expected) as caught:
        GGUFLoader().resolve(str(path))
    assert str(path) in str(caught.value)


def test_an_unknown_architecture_names_the_nearest(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes().replace(b"llama", b"llamb"))
    with pytest.raises(CheckpointError, match=r"'llamb' is not supported.*Did you mean 'llama'"):
        GGUFLoader().resolve(str(path))


def test_missing_file_directory_and_tensor(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such file"):
        GGUFLoader().resolve(str(tmp_path / "none.gguf"))
    with pytest.raises(CheckpointError, match="found none"):
        GGUFLoader().resolve(str(tmp_path))
    write_gguf(tmp_path / "m.gguf")
    loader = GGUFLoader()
    manifest = loader.resolve(str(tmp_path))
    assert manifest.files == [str(tmp_path / "m.gguf")]
    with pytest.raises(CheckpointError, match=r"Did you mean 'model.norm.weight'"):
        next(iter(loader.iter(manifest, ["model.norms.weight"])))


def test_claims() -> None:
    def claim(**fields: object) -> str | None:
        base = {"ref": "m", "path": "/m", "is_directory": False, "names": ("m",)}
        return gguf_manifest.core_claim(FileFacts(**{**base, **fields}))

    assert claim(magic=b"GGUF\x03\0\0\0")
    assert claim(ref="m.gguf", path=None, names=())
    assert claim(is_directory=True, names=("a.gguf", "README.md"))
    assert not claim(is_directory=True, names=("a.gguf", "b.gguf"))
    assert not claim(is_directory=True, names=("a.gguf", "config.json"))
    assert not claim(magic=b"PK\x03\x04")
