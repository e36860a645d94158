"""Beam search against that of transformers, on models of random weights that end often."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from core import LLM, BeamSearchParams
from core.api.errors import RequestError
from tests.tiny_models import save_checkpoint

PROMPTS = [[1, 70, 71, 72], [1, 90, 12], [1, 33, 180, 99, 45, 7, 8]]
ENDS = [2, *range(40, 52)]
"""Many tokens end a sequence, so that random ones do."""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_checkpoint(tmp_path_factory.mktemp("beams"), seed=3, eos_token_id=ENDS)


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(str(path), dtype="float32", max_model_len=64, kv_cache_memory_bytes="8M", max_logprobs=-1) as made:
        yield made


@pytest.fixture(scope="module")
def reference(path: Path) -> Any:
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None  # each call says what ends a sequence
    return model


def theirs(model: Any, prompt: list[int], params: BeamSearchParams) -> list[tuple[list[int], float]]:
    """The tokens behind the prompt and the score of each beam."""
    found = model.generate(
        torch.tensor([prompt]),
        num_beams=params.beam_width,
        num_return_sequences=params.beam_width,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        eos_token_id=None if params.ignore_eos else ENDS,
        pad_token_id=0,
        do_sample=False,
        return_dict_in_generate=True,
        output_scores=True,
    )
    beams = []
    for row, score in zip(found.sequences.tolist(), found.sequences_scores.tolist(), strict=True):
        tokens = row[len(prompt) :]
        if not params.ignore_eos:
            end = next((place for place, token in enumerate(tokens) if token in ENDS), len(tokens))
            tokens = tokens[: end + 1]
        beams.append((tokens, score))
    return beams


@pytest.mark.parametrize("width, length, penalty", [(2, 5, 1.0), (3, 8, 1.0), (4, 12, 0.0), (4, 12, 2.0), (6, 6, -1.0)])
def test_beams_are_those_of_transformers(llm: LLM, reference: Any, width: int, length: int, penalty: float) -> None:
    ended = 0
    for ignore_eos in (False, True):
        params = BeamSearchParams(
            beam_width=width,
            max_tokens=length,
            length_penalty=penalty,
            ignore_eos=ignore_eos,
            include_stop_str_in_output=True,
        )
        outputs = llm.beam_search([{"prompt_token_ids": prompt} for prompt in PROMPTS], params)
        for prompt, output in zip(PROMPTS, outputs, strict=True):
            ours = []
            for beam in output.sequences:
                tokens = beam.tokens[len(prompt) :]
                assert len(beam.logprobs) == len(tokens)
                ours.append((tokens, beam.cum_logprob / len(tokens) ** penalty))
                ended += beam.finish_reason == "stop"
            expected = theirs(reference, prompt, params)
            assert [tokens for tokens, _ in ours] == [tokens for tokens, _ in expected]
            assert [score for _, score in ours] == pytest.approx([score for _, score in expected], abs=1e-4)
    assert ended or penalty > 1.0, "no beam met an end, so its handling was not tried"


def test_ends_texts_and_the_edge_of_the_context(llm: LLM) -> None:
    (output,) = llm.beam_search("ab", BeamSearchParams(beam_width=4, max_tokens=12))
    for beam in output.sequences:
        assert beam.text == llm.get_tokenizer().decode(beam.tokens)
        assert beam.finish_reason == "length" or beam.stop_reason in ENDS
        assert not set(beam.tokens[2:]) & set(ENDS)
    long = [1] * 61
    (output,) = llm.beam_search([long], BeamSearchParams(beam_width=2, max_tokens=50, ignore_eos=True))
    assert [len(beam.tokens) for beam in output.sequences] == [64, 64]
    assert llm.beam_search([], BeamSearchParams(beam_width=2, max_tokens=5)) == []


def test_mistakes_are_told(llm: LLM, path: Path) -> None:
    with pytest.raises(RequestError, match="beam_width is 0; expected an integer from 1 to 128"):
        BeamSearchParams(beam_width=0, max_tokens=1)
    with pytest.raises(RequestError, match="length_penalty is nan"):
        BeamSearchParams(beam_width=1, max_tokens=1, length_penalty=float("nan"))
    with pytest.raises(RequestError, match="expected BeamSearchParams"):
        llm.beam_search("a", {"beam_width": 2})  # type: ignore[arg-type]
    with pytest.raises(RequestError, match="serves no adapters"):
        llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=1), lora_request="x")
