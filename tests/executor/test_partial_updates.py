"""An update of some tensors builds only what is made of them, and has the bits of an engine that was started with them."""

import random
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from core.api.errors import UserError, UtilityError
from core_frontend.llm import LLM
from core_runtime.executor.runner_building import RunnerBuilder
from tests.inside import worker_of
from tests.new_weights import SETTINGS, answers, answers_of, mixed, weights_of
from tests.tiny_models import save_checkpoint

Q = "model.layers.1.self_attn.q_proj.weight"
DOWN = "model.layers.0.mlp.down_proj.weight"
NORM = "model.layers.2.input_layernorm.weight"


def engine(path: Path, **settings: Any) -> LLM:
    return LLM(str(path), **{**SETTINGS, **settings})


def kernels_of(llm: LLM, number: int = 0) -> dict[str, object]:
    """The matrices of a model of the engine."""
    weights = worker_of(llm).instances[number].model.weights
    found: dict[str, object] = {"embedding": weights.embedding.tokens, "head": weights.head.tokens}
    for index, block in enumerate(weights.blocks):
        (mixer,) = block.mixers
        found |= {f"{index}.qkv": mixer.qkv, f"{index}.o": mixer.o}
        found |= {f"{index}.gate_up": block.mlp.gate_up, f"{index}.down": block.mlp.down}
    return found


def others(before: dict[str, object], after: dict[str, object]) -> set[str]:
    return {name for name, kernel in after.items() if kernel is not before[name]}


@pytest.fixture(scope="module")
def newer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("newer"), seed=11)


@pytest.mark.slow
def test_only_what_is_made_of_newer_tensors_is_built(tiny_llama: Path, newer: Path, tmp_path: Path) -> None:
    with engine(tiny_llama, enable_sleep_mode=True) as llm:
        nbytes = worker_of(llm).device.nbytes["weights"]
        for names, expected in (
            ([Q], {"1.qkv"}),
            ([Q, DOWN], {"1.qkv", "0.down"}),
            ([NORM], set()),
            (None, set(kernels_of(llm))),
        ):
            before = kernels_of(llm)
            llm.update_weights(path=str(newer), names=names)
            assert others(before, kernels_of(llm)) == expected
            assert worker_of(llm).device.nbytes["weights"] == nbytes, "memory of what was replaced is free again"
        llm.update_weights(path=str(tiny_llama), names=[NORM, DOWN])
        changed = answers_of(mixed(tmp_path / "mixed", newer, tiny_llama, [NORM, DOWN]))
        assert answers(llm) == changed
        for _ in range(2):
            llm.sleep(1)
            saved = worker_of(llm).saved
            assert len(saved._index.kernels) == len(kernels_of_file(tiny_llama)), (
                "nothing is read from the checkpoint again"
            )
            llm.wake_up()
            assert answers(llm) == changed
            llm.update_weights(path=str(tiny_llama), names=[DOWN])
        assert answers(llm) == changed


def kernels_of_file(path: Path) -> list[str]:
    """A kernel for all queries, keys and values, and for gate and up; one for each other matrix."""
    matrices = [name for name, tensor in weights_of(path).items() if tensor.dim() == 2]
    return [name for name in matrices if not name.endswith(("k_proj.weight", "v_proj.weight", "up_proj.weight"))]


def test_what_fails_at_the_last_moment_has_changed_nothing(
    tiny_llama: Path, newer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(builder: RunnerBuilder) -> None:
        raise UserError("there is no room")

    model = mixed(tmp_path / "model", tiny_llama, tiny_llama, [])
    with engine(model) as llm:
        before = answers(llm)
        kernels = kernels_of(llm)
        nbytes = worker_of(llm).device.nbytes["weights"]
        for names in ([Q], None):
            with monkeypatch.context() as patch, pytest.raises(UtilityError, match="there is no room"):
                patch.setattr(RunnerBuilder, "build", fail)
                llm.update_weights(path=str(newer), names=names)
            assert not others(kernels, kernels_of(llm))
            assert worker_of(llm).device.nbytes["weights"] == nbytes
            assert answers(llm) == before
            assert llm.weight_version == ""
        save_file(weights_of(newer), model / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(UtilityError, match=r"model.safetensors: has been changed since"):
            llm.update_weights(path=str(newer), names=[Q])
        assert answers(llm) == before
        llm.update_weights(path=str(newer))
        assert answers(llm) == answers_of(newer), "no tensor of the changed file is read any more"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("llama", {"quantization": "int8"}),
        ("llama", {"quantization": "mxfp4", "async_scheduling": True}),
        ("gemma3", {}),
        ("mixtral", {}),
        ("mixtral", {"quantization": "mxfp4"}),
        ("qwen3_moe", {"dtype": "float32"}),
        ("deepseek_v3", {}),
        ("lfm2", {}),
        ("llama", {"model_impl": "transformers"}),
    ],
    ids=str,
)
def test_any_tensors_of_any_family(family: str, settings: dict[str, Any], tmp_path: Path) -> None:
    """Some tensors after others, from two checkpoints, and a sleep between them."""
    chosen = random.Random(5)
    first = save_checkpoint(tmp_path / "first", family=family)
    second = save_checkpoint(tmp_path / "second", family=family, seed=11)
    names = sorted(weights_of(first))
    newer: set[str] = set()
    with engine(first, enable_sleep_mode=True, **settings) as llm:
        for turn in range(4):
            count = chosen.choice([1, 2, len(names) // 3])
            some = set(chosen.sample(names, count))
            to_second = turn != 2
            llm.update_weights(path=str(second if to_second else first), names=sorted(some))
            newer = newer | some if to_second else newer - some
            if turn == 1:
                llm.sleep(1)
                llm.wake_up()
            expected = mixed(tmp_path / f"turn{turn}", first, second, newer)
            assert answers(llm) == answers_of(expected, **settings), (turn, some)


@pytest.mark.slow
def test_a_draft_keeps_what_it_has(tiny_llama: Path, newer: Path, tmp_path: Path) -> None:
    draft = {"method": "draft_model", "model": str(tiny_llama), "num_speculative_tokens": 2, "adaptive": False}
    with engine(tiny_llama, speculative_config=draft) as llm:
        answers(llm)
        drafts = kernels_of(llm, 1)
        llm.update_weights(path=str(newer), names=[Q])
        assert not others(drafts, kernels_of(llm, 1))
        assert answers(llm) == answers_of(mixed(tmp_path / "mixed", tiny_llama, newer, [Q]))
        llm.update_weights(path=str(newer))
        assert answers(llm) == answers_of(newer)
