"""Adapters that have whole matrices in place of the model's, within recurrences and between streams: bits in every company, the
numbers of peft, and what is refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from core import SamplingParams
from core.api.errors import UserError
from core_config.resolve import resolve
from tests.adapters.drawn import shapes_of, write_adapter
from tests.adapters.engines import AdapterEngine, bits_of, engine
from tests.adapters.families import AdaptedHarness, save_base, saved_with_logits
from tests.inside import core_of, worker_of
from tests.kv.conversations import checkpoint

PROMPTS = [[1, *range(40, 75)], [1, 9, 99, 100, 9, 99, 100, 9, 99], [1, *range(120, 171, 3)]]
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True, logprobs=3)
WITHIN = ("x_proj", "dt_proj")
AROUND = ("in_proj", "out_proj")
FAMILIES = {
    "mamba": (WITHIN, AROUND),
    "jamba": (WITHIN, AROUND),
    "gemma3n_text": (
        ("prediction_coefs", "correction_coefs"),
        ("linear_left", "per_layer_model_projection", "altup_projections.0", "altup_unembed_projections.1"),
    ),
}
"""States in each layer, and beside attention and experts; several streams. Whole matrices, and usual ones."""

VARIANTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "in chunks": {"max_num_batched_tokens": 8},
    "preempted": {"num_gpu_blocks_override": "tight"},
    "from the cache": {"enable_prefix_caching": True},
    "never recorded": {"enforce_eager": True},
    "planned ahead": {"async_scheduling": True},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "adaptive": False}},
    "plain torch": {"attention_backend": "torch_sdpa", "numerics": "reference"},
    "sleep": {"enable_sleep_mode": True},
}


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def base(family: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint(family, tmp_path_factory.mktemp(family) / "model")


@pytest.fixture(scope="module")
def adapters(family: str, base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    within, around = FAMILIES[family]
    return [
        write_adapter(folder / "every", shapes_of(str(base), (*within, *around)), 8, 1, 0.1),
        write_adapter(folder / "within", shapes_of(str(base), within), 4, 2, 0.2),
        write_adapter(folder / "around", shapes_of(str(base), around), 4, 3, 0.1),
    ]


def wanted_of(adapters: list[Path]) -> list[tuple[list[int], Path | None]]:
    return [(prompt, adapter) for prompt in PROMPTS for adapter in (*adapters, None)]


def together(made: AdapterEngine, adapters: list[Path]) -> list[Any]:
    return [bits_of(output) for output in made.run(wanted_of(adapters), ASKED)]


def alone(made: AdapterEngine, adapters: list[Path]) -> list[Any]:
    return [bits_of(made.run([one], ASKED)[0]) for one in wanted_of(adapters)]


def kernels_of(variant: str) -> dict[str, Any]:
    """What decides the bits: plain torch has others than the processor's own kernels."""
    return VARIANTS[variant] if variant == "plain torch" else {}


@pytest.fixture(scope="module")
def expected(base: Path, adapters: list[Path]) -> Iterator[dict[str, list[Any]]]:
    found = {}
    for variant in ("alone", "plain torch"):
        with engine(base, {}, **kernels_of(variant)) as made:
            made.load(*adapters)
            found[variant] = alone(made, adapters)
    yield found


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_are_equal(
    family: str, base: Path, adapters: list[Path], expected: dict[str, list[Any]], variant: str
) -> None:
    settings = dict(VARIANTS[variant])
    if variant == "from the cache" and WITHIN in FAMILIES[family]:
        settings["mamba_block_size"] = 8
    if settings.get("num_gpu_blocks_override") == "tight":
        plan = resolve(
            {"model": str(base), "dtype": "float32", "max_model_len": 128, "max_num_seqs": 8}, context="llm"
        ).memory
        settings["num_gpu_blocks_override"] = plan.blocks_of(128) + 1
    with engine(base, {}, **settings) as made:
        made.load(*reversed(adapters))  # in other rows of the tables
        for _ in range(2):  # the second time with what the first one left
            assert together(made, adapters) == expected.get(variant, expected["alone"])
        if variant == "sleep":
            made.llm.sleep(level=2)
            made.llm.wake_up()
            assert together(made, adapters) == expected["alone"]
        if variant == "preempted" and family != "mamba":  # whose states do not grow
            assert made.llm.stats().num_preemptions > 0


def test_each_adapter_has_an_effect_and_base_requests_have_the_bits_of_an_engine_without_any(
    base: Path, adapters: list[Path], expected: dict[str, list[Any]]
) -> None:
    turn = len(adapters) + 1
    assert all(len({str(bits) for bits in expected["alone"][first : first + turn]}) == turn for first in (0, turn))
    with engine(base) as made:
        plain = [bits_of(output) for output in made.run([(prompt, None) for prompt in PROMPTS], ASKED)]
    assert plain == expected["alone"][len(adapters) :: turn]


def test_adapters_come_and_go_and_other_steps_are_recorded(
    base: Path, adapters: list[Path], expected: dict[str, list[Any]]
) -> None:
    every, within, around = adapters
    with engine(base, {"max_loras": 1, "max_cpu_loras": 1}) as made:
        forward = core_of(made.llm).executor.worker.runner.forward
        recorder = forward.recorder
        made.load(around)
        made.run([(PROMPTS[0], around)], ASKED)
        assert not forward.model.capturable or not any("adapters" in kind for kind in recorder.unrecorded)
        made.drop(around)
        for adapter in (every, within, every):
            made.load(adapter)
            (output,) = made.run([(PROMPTS[0], adapter)], ASKED)
            assert bits_of(output) == expected["alone"][adapters.index(adapter)]
            placed = worker_of(made.llm).adapters
            read = placed.find(made.digests[adapter])
            assert 0 < sum(change.nbytes for change in read.whole.values()) <= read.facts.nbytes
            made.drop(adapter)
            made.run([(PROMPTS[0], None)], ASKED)
        assert not any(placed._whole.values()), "what an adapter replaced goes with it"
        assert any("adapters" in kind for kind in recorder.unrecorded)


@pytest.mark.parametrize("family", ["mamba", "jamba"], scope="module", indirect=True)
def test_the_plan_has_room_for_them(base: Path, adapters: list[Path]) -> None:
    settings = {"model": str(base), "dtype": "float32", "enable_lora": True, "max_lora_rank": 8}
    wide = resolve({**settings, "lora_target_modules": [*WITHIN, *AROUND]}, context="llm").memory
    with engine(base, {"max_lora_rank": 8}) as made:
        made.load(adapters[0])
        taken = worker_of(made.llm).adapters.find(made.digests[adapters[0]]).facts.nbytes
    assert taken == pytest.approx(wide.adapter, rel=0.01)


PRODUCTS: dict[str, tuple[str, dict[str, Any]]] = {
    "Mamba": ("mamba", {"target_modules": ["in_proj", "x_proj", "dt_proj"]}),
    "Falcon-Mamba": ("falcon_mamba", {"target_modules": ["x_proj", "dt_proj"], "use_dora": True}),
    "Jamba": ("jamba", {"target_modules": ["q_proj", "in_proj", "x_proj", "dt_proj", "out_proj", "down_proj"]}),
    "biases": ("jamba", {"target_modules": ["dt_proj"], "lora_bias": True}),
    "saved norms": (
        "jamba",
        {"target_modules": ["x_proj"], "modules_to_save": ["dt_layernorm", "b_layernorm", "c_layernorm"]},
    ),
    "Kimi Linear": ("kimi_linear", {"target_modules": ["f_a_proj", "f_b_proj", "g_a_proj", "g_b_proj", "b_proj"]}),
    "a gated norm": ("qwen3_next", {"target_modules": ["in_proj_ba", "out_proj"], "modules_to_save": ["norm"]}),
}


@pytest.mark.parametrize("case", PRODUCTS)
def test_logits_are_those_of_peft(case: str, tmp_path: Path) -> None:
    """Of the merged model: transformers multiplies by the base's `dt_proj.weight`, around what peft wraps."""
    family, options = PRODUCTS[case]
    base = save_base(tmp_path / "base", family)
    prompt = [4 + number * 7 % 250 for number in range(19)]
    wanted = saved_with_logits(base, tmp_path / "adapter", family, prompt, merged=True, **options)
    found = AdaptedHarness(base, tmp_path / "adapter").logits(prompt)
    assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()


BAD: dict[str, tuple[dict[str, tuple[int, int]], dict[str, Any], str]] = {
    "A": ({"x_proj": (0, 1)}, {}, r"A of .*x_proj has \d+ inputs, the model's module has shape"),
    "B": ({"x_proj": (1, 0)}, {}, r"B of .*x_proj has \d+ outputs, the model's module has \d+"),
    "activated": ({"x_proj": (0, 0)}, {"alora_invocation_tokens": [7]}, "is activated by tokens and changes .*x_proj"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_fit_is_a_sentence(case: str, tmp_path: Path) -> None:
    more, keys, sentence = BAD[case]
    base = save_base(tmp_path / "base", "mamba")
    [name] = more
    stored = {
        key.removesuffix(".weight"): tuple(tensor.shape)
        for key, tensor in load_file(base / "model.safetensors").items()
    }
    shapes = {
        module: (shape[0] + more[name][0], shape[1] + more[name][1])
        for module, shape in stored.items()
        if module.endswith(name)
    }
    adapter = write_adapter(tmp_path / "adapter", shapes, 4, 1, **keys)
    with pytest.raises(UserError, match=sentence):
        AdaptedHarness(base, adapter)


def test_a_bias_that_the_model_has_not_is_refused(tmp_path: Path) -> None:
    base = save_base(tmp_path / "base", "mamba")
    options: dict[str, Any] = {"target_modules": ["x_proj"], "lora_bias": True}
    with torch.inference_mode():
        saved_with_logits(base, tmp_path / "adapter", "mamba", [4, 5], **options)
    with pytest.raises(UserError, match=r"has a bias for .*x_proj, which has none in the model"):
        AdaptedHarness(base, tmp_path / "adapter")
