"""A request with an adapter has the same bits whatever else runs, and one without has those of an engine without adapters."""

from pathlib import Path
from typing import Any

import pytest

from core import SamplingParams
from tests.adapters.engines import AdapterEngine, bits_of, engine
from tests.adapters.made import save_adapter
from tests.inside import core_of

PROMPTS = [
    [1, *range(40, 75)],
    [1, 9, 99, 100, 200],
    [1, *range(120, 171, 3)],
]
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=24, ignore_eos=True, logprobs=3)

VARIANTS: dict[str, dict[str, Any]] = {
    "alone": {},
    "in chunks": {"max_num_batched_tokens": 8},
    "preempted": {"num_gpu_blocks_override": "tight"},
    "never recorded": {"enforce_eager": True},
    "planned ahead": {"async_scheduling": True},
    "drafts": {"speculative_config": {"method": "ngram", "num_speculative_tokens": 4, "adaptive": False}},
    "one thread": {"platform_config": {"threads": 1}},
}
NORMS = ["input_layernorm", "post_feedforward_layernorm", "q_norm", "norm"]
"""Those that backends apply, those of a call for two, and the one in the calls of the head."""
TIGHT = {"tiny_llama": 14, "tiny_gemma3": 26}


@pytest.fixture(scope="module", params=["tiny_llama", "tiny_gemma3"])
def base(request: pytest.FixtureRequest) -> Path:
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return [
        save_adapter(base, folder / "first", seed=1),
        save_adapter(base, folder / "dora", seed=2, r=20, use_dora=True, modules_to_save=NORMS),
        save_adapter(base, folder / "narrow", seed=3, r=3, target_modules=["q_proj", "up_proj"]),
    ]


def wanted_of(adapters: list[Path]) -> list[tuple[list[int], Path | None]]:
    return [(prompt, adapter) for prompt in PROMPTS for adapter in (*adapters, None)]


def alone(made: AdapterEngine, adapters: list[Path]) -> list:
    return [bits_of(made.run([one], ASKED)[0]) for one in wanted_of(adapters)]


@pytest.fixture(scope="module")
def expected(base: Path, adapters: list[Path]) -> list:
    with engine(base, {}) as made:
        made.load(*adapters)
        return alone(made, adapters)


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_are_equal(base: Path, adapters: list[Path], expected: list, variant: str) -> None:
    settings = dict(VARIANTS[variant])
    if settings.get("num_gpu_blocks_override") == "tight":
        settings["num_gpu_blocks_override"] = TIGHT[base.name[:-1]]
    with engine(base, {}, **settings) as made:
        made.load(*reversed(adapters))  # in other rows of the tables
        if variant == "alone":
            found = alone(made, adapters)
        else:
            found = [bits_of(output) for output in made.run(wanted_of(adapters), ASKED)]
    assert found == expected


def test_base_requests_have_the_bits_of_an_engine_without_adapters(
    base: Path, adapters: list[Path], expected: list
) -> None:
    with engine(base) as made:
        plain = [bits_of(output) for output in made.run([(prompt, None) for prompt in PROMPTS], ASKED)]
    assert plain == expected[len(adapters) :: len(adapters) + 1]


def test_positions_before_the_first_adapted_one_are_the_base_models(base: Path, adapters: list[Path]) -> None:
    prompt = PROMPTS[0]
    asked = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, prompt_logprobs=2, logprobs=2)
    for settings in ({}, {"max_num_batched_tokens": 8}):
        with engine(base, {}, **settings) as made:
            made.load(adapters[0])
            (late,) = made.run([(prompt, adapters[0])], asked, begins=20)
            (whole,) = made.run([(prompt, adapters[0])], asked)
            (plain,) = made.run([(prompt, None)], asked)
        rows = [bits_of(one)[1] for one in (late, whole, plain)]
        assert rows[0][:21] == rows[2][:21]  # the entry of a token comes from the position before it
        assert rows[0][21] not in (rows[1][21], rows[2][21])


def test_adapters_come_and_go_between_steps(base: Path, adapters: list[Path], expected: list) -> None:
    first, _, narrow = adapters
    with engine(base, {"max_loras": 1, "max_cpu_loras": 1}) as made:
        for round_ in range(6):
            adapter = (first, narrow)[round_ % 2]
            made.load(adapter)
            (output,) = made.run([(PROMPTS[0], adapter)], ASKED)
            assert bits_of(output) == expected[adapters.index(adapter)]
            made.drop(adapter)
        (plain,) = made.run([(PROMPTS[0], None)], ASKED)
    assert bits_of(plain) == expected[len(adapters)]


def test_steps_with_usual_adapters_are_recorded(base: Path, adapters: list[Path]) -> None:
    first, dora, narrow = adapters
    with engine(base, {}) as made:
        made.load(first, dora, narrow)
        recorder = core_of(made.llm).executor.worker.runner.forward.recorder
        made.run([(PROMPTS[0], first), (PROMPTS[1], narrow), (PROMPTS[2], None)], ASKED)
        assert not any("adapters" in kind for kind in recorder.unrecorded)
        made.run([(PROMPTS[0], dora)], ASKED)  # its products must be alone before they are multiplied
        assert any("adapters" in kind for kind in recorder.unrecorded)
