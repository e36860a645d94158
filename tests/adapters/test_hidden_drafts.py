"""Drafts that read the model's hidden states, or come from a layer of its own, beside adapters: no bit changes.

Heads and layers that draft share the model's embedding and output head, which adapters change, too.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from core import SamplingParams
from tests.adapters.drawn import shapes_of, write_adapter
from tests.adapters.engines import AdapterEngine, bits_of, engine
from tests.adapters.made import save_adapter
from tests.speculative.checkpoints import save_eagle, save_eagle3, save_medusa, save_mtp

PROMPTS = [[1, *range(40, 75)], [1, 9, 99, 100, 9, 99, 100, 9, 99]]
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True, logprobs=3)
LATENT = ("q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_proj")
DRAFTING_LAYER = "model.layers.3."
SLEEPS = {"enable_sleep_mode": True}


def drafting(method: str, path: Path | None = None, count: int = 3) -> dict[str, Any]:
    named = {} if path is None else {"model": str(path)}
    config = {"method": method, "num_speculative_tokens": count, "adaptive": False, **named}
    return {"speculative_config": config, **SLEEPS}


def answers(made: AdapterEngine, adapters: list[Path]) -> list[Any]:
    wanted = [(prompt, adapter) for prompt in PROMPTS for adapter in (*adapters, None)]
    return [bits_of(output) for output in made.run(wanted, ASKED)]


def check(made: AdapterEngine, adapters: list[Path], expected: list[Any]) -> None:
    """Compare answers, also the second time and after a sleep."""
    made.load(*adapters)
    for _ in range(2):
        assert answers(made, adapters) == expected
    made.llm.sleep(level=2)
    made.llm.wake_up()
    assert answers(made, adapters) == expected
    assert made.llm.stats().spec_num_draft_tokens > 0


@pytest.fixture(scope="module")
def adapters(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One of all matrices, and one that changes what drafts share with the model."""
    folder = tmp_path_factory.mktemp("adapters")
    shared = {"target_modules": ["q_proj", "embed_tokens", "lm_head"], "modules_to_save": ["norm"]}
    return [save_adapter(tiny_llama, folder / "plain"), save_adapter(tiny_llama, folder / "shared", seed=2, **shared)]


@pytest.fixture(scope="module")
def expected(tiny_llama: Path, adapters: list[Path]) -> Iterator[list[Any]]:
    with engine(tiny_llama, {}) as made:
        made.load(*adapters)
        found = answers(made, adapters)
    assert len({str(bits) for bits in found}) == len(found), "adapters have an effect"
    yield found


@pytest.mark.parametrize("method", ["eagle", "eagle3", "medusa"])
def test_heads_change_no_bit(
    tiny_llama: Path, adapters: list[Path], expected: list[Any], method: str, tmp_path: Path
) -> None:
    if method == "medusa":
        path, _ = save_medusa(tmp_path / method)
    else:
        target = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
        path, _ = {"eagle": save_eagle, "eagle3": save_eagle3}[method](tmp_path / method, target)
    with engine(tiny_llama, {}, **drafting(method, path)) as made:
        check(made, adapters, expected)


def test_a_layer_of_the_model_changes_no_bit(tmp_path: Path) -> None:
    model = save_mtp(tmp_path / "model")
    found = shapes_of(str(model), LATENT)
    shapes = {module: shape for module, shape in found.items() if not module.startswith(DRAFTING_LAYER)}
    adapters = [write_adapter(tmp_path / str(seed), shapes, 4 * seed, seed) for seed in (1, 2)]
    with engine(model, {}) as made:
        made.load(*adapters)
        expected = answers(made, adapters)
    with engine(model, {}, **drafting("mtp", count=2)) as made:
        check(made, adapters, expected)
