"""Medusa's heads and MLP speculators in the engine, from their published layouts: bits, and the guesses of plain torch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from core import LLM, SamplingParams
from core.api.errors import ConfigError
from core_config.resolve import resolve
from core_runtime.executor.drafts.heads import HeadsPass
from tests.speculative.checkpoints import save_medusa, save_speculator
from tests.speculative.test_draft_heads import Speculator, medusa_oracle
from tests.speculative.test_draft_model import PROMPTS, Bits, noted, run
from tests.speculative.test_hidden_drafts import drafting


@pytest.fixture(scope="module")
def medusa(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Tensor]]:
    return save_medusa(tmp_path_factory.mktemp("medusa"))


@pytest.fixture(scope="module")
def speculator(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Speculator]:
    return save_speculator(tmp_path_factory.mktemp("speculator"))


@pytest.mark.parametrize("method", ["medusa", "mlp_speculator"])
def test_bits_do_not_depend_on_heads_and_these_guess_what_plain_torch_guesses(
    tiny_llama: Path,
    medusa: tuple[Path, dict[str, Tensor]],
    speculator: tuple[Path, Speculator],
    expected: Bits,
    method: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = medusa[0] if method == "medusa" else speculator[0]
    bits, stats = run(tiny_llama, **drafting(method, path))
    assert bits == expected
    assert stats.spec_num_draft_tokens > 0

    seen = greedy_drafts(tiny_llama, drafting(method, path), monkeypatch)
    assert len(seen) > 10
    model = AutoModelForCausalLM.from_pretrained(tiny_llama, dtype=torch.float32).eval()
    for tokens, drafts in seen:
        with torch.no_grad():
            out = model(torch.tensor([tokens[:-1]]), output_hidden_states=True)
        hidden = out.hidden_states[-1][0][-1:]
        if method == "medusa":
            found = medusa_oracle(medusa[1], hidden, 3, 1).argmax(-1)
        else:
            found, _ = speculator[1].drafts(hidden, torch.tensor(tokens[-1:]), scaled=False)
        assert drafts == found[:, 0].tolist()[: len(drafts)]


def greedy_drafts(
    target: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[list[int], list[int]]]:
    """Known tokens, and the drafts behind them."""
    seen = noted(monkeypatch, HeadsPass)
    given: dict[str, Any] = {"max_model_len": 128, "max_num_seqs": 8, "use_tqdm_on_load": False, "dtype": "float32"}
    with LLM(model=str(target), **given, **settings) as llm:
        llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=8, ignore_eos=True), use_tqdm=False)
    return seen


def test_more_drafts_than_heads_are_refused_at_the_start(
    tiny_llama: Path, medusa: tuple[Path, dict[str, Tensor]]
) -> None:
    path, _ = medusa
    with pytest.raises(ConfigError, match="the draft has 3 heads"):
        LLM(model=str(tiny_llama), use_tqdm_on_load=False, **drafting("medusa", path, 5))


@pytest.mark.parametrize("method", ["medusa", "mlp_speculator"])
def test_there_are_as_many_drafts_as_heads_unless_told(
    method: str, medusa: tuple[Path, dict[str, Tensor]], speculator: tuple[Path, Speculator], tiny_llama: Path
) -> None:
    path = medusa[0] if method == "medusa" else speculator[0]
    arguments = {"model": str(tiny_llama), "speculative_config": {"method": method, "model": str(path)}}
    assert resolve(arguments, context="llm").engine.scheduler.num_speculative_tokens == 3
