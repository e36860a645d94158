"""Every kept checkpoint: the matrices that its own tool means, the model's tokens, and what the command line says of it."""

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from core.api.sampling_params import SamplingParams
from core.commands.main import main
from core_frontend.llm import LLM
from tests.quantization.packed import KEPT, PROMPT, Packed, check_tokens, differing
from tests.torch_free import run_torch_free

DIGESTS = [  # the folder of the method, its package, and the type in which the tool computes
    ("aqlm", "aqlm", torch.float32),
    ("auto-round", "auto_round", torch.float16),
    ("awq", "awq", torch.float16),
    ("bitsandbytes", "bitsandbytes", torch.float32),
    ("gptq", "gptq", torch.float16),
    ("torchao", "torchao", torch.float32),
]
CHECKPOINTS = [
    pytest.param(path.parent, package, dtype, id=f"{method}-{path.parent.name}")
    for method, package, dtype in DIGESTS
    for path in sorted((KEPT / method).glob("*/digests.json"))
]
SERVED = {
    "aqlm/words": "aqlm",
    "bitsandbytes/nested": "bitsandbytes",
    "compressed-tensors/mixed": "compressed",
    "gptq/order": "gptq",
    "hqq/bits": "hqq",
    "modelopt/fp8": "modelopt",  # which declares a cache of 8 bits
    "torchao/integers": "torchao",
}
EXPLAINED = (
    "auto-round/mixed", "awq/gemm", "bitsandbytes/int8", "gptq/order", "hqq/bits", "modelopt/nvfp4",
    "torchao/floats",
)  # fmt: skip
PLANNING = {
    "aqlm": "manifest, method, layout",
    "auto_round": "manifest, method", "awq": "manifest, method, layout", "bitsandbytes": "manifest, method",
    "compressed": "manifest, layouts", "gptq": "manifest, method, layout", "hqq": "manifest, method, layout",
    "torchao": "manifest, method, integers, floats",
}  # fmt: skip


def hooks_of(package: str) -> Any:
    return importlib.import_module(f"core_quantization.{package}.manifest")


@pytest.mark.parametrize(("path", "package", "dtype"), CHECKPOINTS)
def test_matrices_and_tokens_are_those_of_the_tool(
    path: Path, package: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    packed = Packed(path, hooks_of(package))
    assert not differing(packed, dtype)
    check_tokens(packed, tmp_path / "plain")


@pytest.mark.parametrize("name", SERVED)
def test_the_engine_serves_the_same_tokens(name: str) -> None:
    settings: dict[str, Any] = {"device": "cpu", "max_model_len": 64, "kv_cache_memory_bytes": 1 << 22}
    with LLM(model=str(KEPT / name), dtype="float32", use_tqdm_on_load=False, **settings) as llm:
        params = SamplingParams(max_tokens=12, temperature=0.0, ignore_eos=True)
        found = llm.generate([{"prompt_token_ids": PROMPT}], params, use_tqdm=False)[0].outputs[0].token_ids
    logits = Packed(KEPT / name, hooks_of(SERVED[name])).logits([*PROMPT, *found])
    assert logits[len(PROMPT) - 1 : -1].argmax(-1).tolist() == found


@pytest.mark.parametrize("name", EXPLAINED)
def test_the_configuration_explains_it(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["config", "explain", str(KEPT / name), "--device", "cpu"]) == 0
    assert name.partition("/")[0] in capsys.readouterr().out


def test_planning_needs_no_torch() -> None:
    imports = [f"from core_quantization.{package} import {modules}" for package, modules in PLANNING.items()]
    run_torch_free("; ".join([*imports, "import core.plugin.hookspecs, core_loaders.safetensors.header"]))
