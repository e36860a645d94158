"""Makes the checkpoints beside it, those of `../awq` and `../gptq/phi3`, with AutoRound, where that is installed.

Random weights, rounded to the nearest: only the packing matters. `digests.json` of each has, by module, the sha256 of the
float16 bytes of the matrix [N, K]: for AutoRound's own formats as its module multiplies with it, for AWQ as
`dequantize_gemm` of AutoAWQ computes it.
"""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from auto_round import AutoRound
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, Phi3Config, Qwen3MoeConfig

HERE = Path(__file__).parent
AWQ = HERE.parent / "awq"
GPTQ = HERE.parent / "gptq"
WORK = Path("/tmp/make-auto-round")
sys.path.append(str(HERE.parent))  # the environment of the tool does not have the package `tests`

from maker import EXPERTS, SHAPE, digest, random_model, save_tokenizer, wanted, write_digests  # noqa: E402

MIXED = {"model.layers.1.mlp.down_proj": {"bits": 8}, "model.layers.0.mlp.up_proj": {"bits": 16}}
CHECKPOINTS: dict[str, tuple[Path, Any, str, dict[str, Any]]] = {
    "mixed": (HERE, LlamaConfig(**SHAPE), "auto_round", {"bits": 4, "sym": False, "layer_config": MIXED}),
    "minus_one": (HERE, LlamaConfig(**SHAPE), "auto_round:auto_gptq", {"bits": 2, "sym": False}),
    "words_of_outputs": (HERE, LlamaConfig(**SHAPE), "auto_round:auto_awq", {"bits": 4, "sym": True}),
    "phi3": (GPTQ, Phi3Config(**SHAPE), "auto_gptq", {"bits": 8, "sym": True}),
    "gemm": (AWQ, LlamaConfig(**SHAPE), "auto_awq", {"bits": 4, "sym": False}),
    "experts": (AWQ, Qwen3MoeConfig(**SHAPE, **EXPERTS), "auto_awq", {"bits": 4, "sym": False}),
    "fused": (AWQ, Phi3Config(**SHAPE), "auto_awq", {"bits": 4, "sym": False}),
}


def half_digest(matrix: torch.Tensor) -> str:
    """Return the digest of a matrix in float16."""
    return digest(matrix.to(torch.float16), torch.float16)


def make(name: str, folder: Path, config: Any, form: str, settings: dict[str, Any]) -> None:
    """One checkpoint."""
    plain = WORK / name
    random_model(config, torch.float16).save_pretrained(plain)
    save_tokenizer(plain)
    model = AutoModelForCausalLM.from_pretrained(plain, dtype=torch.float16)
    rounding = AutoRound(
        model,
        AutoTokenizer.from_pretrained(plain),
        iters=0,
        disable_opt_rtn=True,
        group_size=32,
        device_map="cpu",
        **settings,
    )
    written = WORK / f"{name}-packed"
    shutil.rmtree(written, ignore_errors=True)
    rounding.quantize_and_save(str(written), format=form)
    found = next(written.rglob("config.json")).parent
    target = folder / name
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    for file in found.iterdir():
        if file.name == "config.json" or file.suffix == ".safetensors":
            shutil.copy(file, target / file.name)
    if folder == GPTQ:
        return  # GPTQModel 7.7 does not open modules that phi3 holds fused; the test has a reference of its own
    digests = of_awq(target) if "awq" in form else of_modules(target)
    write_digests(target, ("auto-round", "autoawq", "torch", "transformers"), digests, "float16")


def of_modules(path: Path) -> dict[str, str]:
    """What modules of the tool multiply the identity with."""
    model = AutoModelForCausalLM.from_pretrained(path, device_map="cpu", dtype=torch.float16)
    digests = {}
    for name, module in model.named_modules():
        if hasattr(module, "qweight"):
            inputs = module.infeatures if hasattr(module, "infeatures") else module.in_features
            with torch.inference_mode():
                digests[name] = half_digest(module(torch.eye(inputs, dtype=torch.float16)).T)
    return digests


def of_awq(path: Path) -> dict[str, str]:
    """AutoAWQ's own function; its package does not import beside today's transformers, the file does."""
    package = importlib.util.find_spec("awq")
    assert package is not None and package.submodule_search_locations is not None, "pip install --no-deps autoawq"
    file = Path(package.submodule_search_locations[0]) / "utils" / "packing_utils.py"
    spec = importlib.util.spec_from_file_location("packing_utils", file)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    tensors: dict[str, torch.Tensor] = {}
    for shard in path.glob("*.safetensors"):
        tensors.update(load_file(shard))
    digests = {}
    for name in tensors:
        module, _, suffix = name.rpartition(".")
        if suffix == "qweight":
            stored = [tensors[f"{module}.{part}"] for part in ("qweight", "qzeros", "scales")]
            digests[module] = half_digest(tool.dequantize_gemm(*stored, 4, 32).T)
    return digests


if __name__ == "__main__":
    for one in wanted(CHECKPOINTS):
        make(one, *CHECKPOINTS[one])
