"""Requests with adapters next to what else changes steps: drafts of other kinds, grammars, and pages in other memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from core import SamplingParams, StructuredOutputsParams
from core_frontend.library.lora_request import LoRARequest
from tests.adapters.engines import AdapterEngine, bits_of, engine
from tests.adapters.made import save_adapter

PROMPTS = [[1, *range(40, 75)], [1, 9, 99, 100, 9, 99, 100, 9, 99]]
NORMS = ["input_layernorm", "norm"]
ASKED = SamplingParams(temperature=0.8, seed=3, max_tokens=16, ignore_eos=True, logprobs=3)

OTHERS: dict[str, dict[str, Any]] = {
    "drafts of suffixes": {"speculative_config": {"method": "suffix", "num_speculative_tokens": 4}},
    "drafts of a model": {
        "speculative_config": {"method": "draft_model", "model": "itself", "num_speculative_tokens": 3}
    },
    "pages in host memory": {"enable_prefix_caching": True, "kv_offloading_size": 0.01, "num_gpu_blocks_override": 24},
}


@pytest.fixture(scope="module")
def adapters(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("adapters")
    norms = {"target_modules": ["q_proj", "embed_tokens"], "modules_to_save": NORMS}
    return [save_adapter(tiny_llama, folder / "plain"), save_adapter(tiny_llama, folder / "norms", seed=2, **norms)]


def answers(made: AdapterEngine, adapters: list[Path], params: SamplingParams) -> list[Any]:
    wanted = [(prompt, adapter) for prompt in PROMPTS for adapter in (*adapters, None)]
    return [bits_of(output) for output in made.run(wanted, params)]


@pytest.fixture(scope="module")
def usual(tiny_llama: Path, adapters: list[Path]) -> Iterator[AdapterEngine]:
    with engine(tiny_llama, {}) as made:
        made.load(*adapters)
        yield made


@pytest.mark.parametrize("other", OTHERS)
def test_bits_are_those_without(tiny_llama: Path, adapters: list[Path], usual: AdapterEngine, other: str) -> None:
    settings = dict(OTHERS[other])
    if settings.get("speculative_config", {}).get("model"):
        settings["speculative_config"] = settings["speculative_config"] | {"model": str(tiny_llama)}
    expected = answers(usual, adapters, ASKED)
    with engine(tiny_llama, {}, **settings) as made:
        made.load(*adapters)
        for _ in range(2):  # the second time with what the first one left
            assert answers(made, adapters, ASKED) == expected


def test_a_grammar_holds_in_every_row(adapters: list[Path], usual: AdapterEngine) -> None:
    asked = SamplingParams(
        temperature=0.9, seed=5, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="[ab]{6}")
    )
    names = [*(LoRARequest(str(path), lora_path=str(path)) for path in adapters), None]
    prompt: Any = {"prompt_token_ids": PROMPTS[1]}
    together = usual.llm.generate([prompt] * len(names), asked, lora_request=names, use_tqdm=False)
    alone = [usual.llm.generate([prompt], asked, lora_request=name, use_tqdm=False)[0] for name in names]
    assert [bits_of(one) for one in together] == [bits_of(one) for one in alone]
    texts = [one.outputs[0].text for one in together]
    assert all(len(text) == 6 and set(text) <= {"a", "b"} for text in texts)
