"""Engines whose products round their inputs: the bits of steps in front of the products, whatever happens around a request."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from core import LLM
from core.api.errors import CoreError
from core_platforms.cpu.experts import NativeExperts
from core_platforms.cpu.kernels import NativeKernels
from core_platforms.cpu.native_linear import NativeLinear
from core_runtime.executor.steps.recordable import DECODE
from core_runtime.models.mlp import ExpertsMLP
from tests.declared_models import DECLARED, FAMILIES, save_declared
from tests.inside import worker_of
from tests.ways import WAYS, sampled

Checkpoints = Callable[[str], Path]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Checkpoints:
    folder = tmp_path_factory.mktemp("declared")
    made: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in made:
            made[name] = save_declared(folder / name, name)
        return made[name]

    return find


def with_steps(path: Path, **settings: Any) -> list[Any]:
    """Tokens and log-probabilities where torch rounds in front of each product."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(NativeLinear, "round_inputs", lambda kernel, step: False)
        return sampled(path, **DECLARED, **settings)


@pytest.mark.parametrize("name", FAMILIES)
def test_bits_are_those_of_steps_in_front_of_the_product(
    checkpoints: Checkpoints, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Experts run one by one on both sides: the native sum over experts is rounded elsewhere than torch's."""
    path = checkpoints(name)
    monkeypatch.setattr(NativeKernels, "experts", lambda *arguments, **options: None)
    plain = with_steps(path, alone=True, enable_prefix_caching=False)
    assert sampled(path, **DECLARED) == plain
    assert sampled(path, alone=True) != plain, "rounding changes nothing here: the test compares nothing"


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", FAMILIES)
def test_bits_are_equal(checkpoints: Checkpoints, name: str, way: str) -> None:
    path = checkpoints(name)
    plain = sampled(path, alone=True, enable_prefix_caching=False, **DECLARED)
    assert sampled(path, **WAYS[way], **DECLARED) == plain


def test_steps_are_recorded_and_experts_run_together(checkpoints: Checkpoints) -> None:
    settings: dict[str, Any] = {"max_model_len": 64, "kv_cache_memory_bytes": 1 << 20, "use_tqdm_on_load": False}
    with LLM(model=str(checkpoints("static_mixtral")), **settings, **DECLARED) as llm:
        llm.generate([{"prompt_token_ids": [5, 6, 7]}], use_tqdm=False)
        forward = worker_of(llm).runner.forward
        layers = [block.mlp for block in forward.model.weights.blocks]
        assert all(isinstance(layer, ExpertsMLP) and isinstance(layer.experts, NativeExperts) for layer in layers)
        assert forward.recorder._kinds[DECODE].calls


def test_two_ranks_have_the_bits_of_one_where_each_sees_whole_groups(checkpoints: Checkpoints) -> None:
    path = checkpoints("blocks_mixtral")
    two = sampled(path, tensor_parallel_size=2, **DECLARED)
    assert two == sampled(path, alone=True, max_num_batched_tokens=9, **DECLARED)


def test_a_scale_of_a_row_that_ranks_divide_is_refused(checkpoints: Checkpoints) -> None:
    with pytest.raises(
        CoreError, match=r"divided into 2 parts: its \d+ inputs are rounded to fp8_e4m3 .*leave --quant"
    ):
        sampled(checkpoints("rows_llama"), tensor_parallel_size=2, **DECLARED)
