"""Drafts that take hidden states, in the engine: the target's bits whatever they guess, and the guesses of plain torch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from core import LLM, SamplingParams
from core.api.errors import ConfigError
from core_runtime.executor.drafts.passes import DraftPass
from tests.speculative.checkpoints import LAYER_IDS, save, save_eagle, save_eagle3, save_mtp, save_speculators
from tests.speculative.oracles import Drafter
from tests.speculative.test_draft_model import PROMPTS, Bits, noted, run
from tests.tiny_models import SHAPE


@pytest.fixture(scope="module")
def target(tiny_llama: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def eagle(target: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Drafter]:
    return save_eagle(tmp_path_factory.mktemp("eagle"), target)


@pytest.fixture(scope="module")
def eagle3(target: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Drafter]:
    return save_eagle3(tmp_path_factory.mktemp("eagle3"), target)


@pytest.fixture(scope="module")
def with_mtp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mtp(tmp_path_factory.mktemp("with_mtp"))


def drafting(method: str, path: Path | None = None, count: int = 3, **keys: object) -> dict[str, Any]:
    config = {"method": method, "num_speculative_tokens": count, "adaptive": False, **keys}
    if path is not None:
        config["model"] = str(path)
    return {"speculative_config": config}


VARIANTS: dict[str, dict[str, Any]] = {
    "in company": {},
    "chunks of 8": {"max_num_batched_tokens": 8},
    "preempted": {"num_gpu_blocks_override": 18, "rounds": 2},
}


@pytest.mark.parametrize("variant", VARIANTS)
def test_bits_do_not_depend_on_the_drafts_of_eagle3(
    tiny_llama: Path, eagle3: tuple[Path, Drafter], expected: Bits, variant: str
) -> None:
    path, _ = eagle3
    bits, stats = run(tiny_llama, **VARIANTS[variant], **drafting("eagle3", path))
    assert bits == expected
    assert 0 < stats.spec_num_accepted_tokens < stats.spec_num_draft_tokens


@pytest.mark.parametrize("named", ["as the draft model", "without its method", "as the model"])
def test_a_checkpoint_of_the_speculators_format_drafts_from_its_directory(
    tiny_llama: Path, target: Any, expected: Bits, tmp_path: Path, named: str
) -> None:
    path = save_speculators(tmp_path / "speculator", target, tiny_llama)
    if named == "as the model":
        bits, stats = run(path)
        assert stats.spec_steps_on or stats.spec_steps_off, "it drafts where that is worth its cost"
    else:
        settings = drafting("eagle3", path)
        if named == "without its method":
            del settings["speculative_config"]["method"]
        bits, stats = run(tiny_llama, **settings)
        assert 0 < stats.spec_num_accepted_tokens < stats.spec_num_draft_tokens
    assert bits == expected


def test_prefixes_are_found_as_often_as_without_drafts(
    tiny_llama: Path, eagle3: tuple[Path, Drafter], expected: Bits
) -> None:
    """To the last block."""
    path, _ = eagle3
    _, plain = run(tiny_llama, rounds=2)
    bits, stats = run(tiny_llama, rounds=2, **drafting("eagle3", path))
    assert bits == expected
    assert stats.prefix_hits == plain.prefix_hits > 0


def test_bits_do_not_depend_on_the_drafts_of_eagle(
    tiny_llama: Path, eagle: tuple[Path, Drafter], expected: Bits
) -> None:
    path, _ = eagle
    bits, stats = run(tiny_llama, **drafting("eagle", path))
    assert bits == expected
    assert stats.spec_num_draft_tokens > 0


def test_bits_do_not_depend_on_a_layer_of_the_model_that_drafts(with_mtp: Path) -> None:
    expected, _ = run(with_mtp)
    bits, stats = run(with_mtp, **drafting("mtp", count=2))
    assert bits == expected
    assert stats.spec_num_draft_tokens > 0


def hidden_of_eagle(target: Any, oracle: Any, tokens: list[int]) -> Tensor:
    out = target(torch.tensor([tokens[:-1]]), output_hidden_states=True)
    last: Tensor = out.hidden_states[-1][0]
    return last


def hidden_of_eagle3(target: Any, oracle: Any, tokens: list[int]) -> Tensor:
    found: list[Tensor] = []

    def keep(module: Any, inputs: tuple[Tensor, ...]) -> None:
        found.append(inputs[0])

    handle = target.model.norm.register_forward_pre_hook(keep)
    out = target(torch.tensor([tokens[:-1]]), output_hidden_states=True)
    handle.remove()
    states = [*out.hidden_states[:-1], found[0]]
    taps: Tensor = oracle.fc(torch.cat([states[one][0] for one in LAYER_IDS], -1))
    return taps


HIDDEN: dict[str, Callable[[Any, Any, list[int]], Tensor]] = {"eagle": hidden_of_eagle, "eagle3": hidden_of_eagle3}


@pytest.mark.parametrize("chunks", [None, 8])
@pytest.mark.parametrize("method", HIDDEN)
def test_the_engine_drafts_what_plain_torch_drafts(
    tiny_llama: Path,
    target: Any,
    method: str,
    chunks: int | None,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Behind prompts, chunks of them, and tokens of which some were accepted drafts."""
    path, oracle = request.getfixturevalue(method)
    seen = noted(monkeypatch, DraftPass)
    given: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 8, "use_tqdm_on_load": False, "dtype": "float32"}
    if chunks is not None:
        given["max_num_batched_tokens"] = chunks
    with LLM(model=str(tiny_llama), enable_prefix_caching=False, **given, **drafting(method, path)) as llm:
        llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), use_tqdm=False)
    assert len(seen) > 10
    with torch.no_grad():
        for tokens, drafts in seen:
            taken = HIDDEN[method](target, oracle, tokens)
            found, _ = oracle.drafts(tokens, taken, len(drafts))
            assert drafts == found


def test_a_draft_of_another_size_is_refused_at_the_start(tiny_llama: Path, tmp_path: Path) -> None:
    config = LlamaConfig(**{**SHAPE, "hidden_size": 32, "num_hidden_layers": 1}).to_dict()
    path = save(tmp_path / "small", config, {"fc.weight": torch.zeros(32, 64)})
    with pytest.raises(ConfigError, match="hidden states of 32 numbers, the model's have 64"):
        LLM(model=str(tiny_llama), use_tqdm_on_load=False, **drafting("eagle", path))


def test_a_model_without_a_layer_that_drafts_is_refused_at_the_start(tiny_llama: Path) -> None:
    with pytest.raises(ConfigError, match="family 'llama' have no layer for it"):
        LLM(model=str(tiny_llama), use_tqdm_on_load=False, **drafting("mtp"))
