"""Two engines, the second of which takes the first one's blocks over TCP (`--kv-connectors tcp`): its answers have the bits
of an engine that computes all of it alone."""

import time
from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from tests.apis.serving_processes import free_port
from tests.inside import core_of
from tests.kv.connector_rows import tiers_of
from tests.tiny_models import save_checkpoint

PROMPTS = [[1, *(3 + stride * index % 250 for index in range(96))] for stride in (1, 3, 7, 11, 13)]
ROOM = {"max_model_len": 128, "num_gpu_blocks_override": 26, "max_num_seqs": 2, "dtype": "float32"}
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=12, ignore_eos=True, logprobs=2, n=2)


def answers(llm: LLM, prompts: list[list[int]]) -> list[Any]:
    """Tokens and log-probabilities of both answers to each prompt."""
    told = []
    for output in llm.generate([{"prompt_token_ids": ids} for ids in prompts], PARAMS, use_tqdm=False):
        for answer in output.outputs:
            logprobs = [[(token, one.logprob) for token, one in row.items()] for row in answer.logprobs or []]
            told.append((list(answer.token_ids), logprobs))
    return told


@pytest.mark.parametrize(
    "family",
    [
        "llama",
        "gemma3",
        "lfm2",
        pytest.param("deepseek_v2", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "more", [{}, {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}], ids=["", "drafts"]
)
def test_answers_on_blocks_of_another_engine_have_the_bits_of_one(
    family: str, more: dict[str, Any], tmp_path: Path
) -> None:
    model = str(save_checkpoint(tmp_path / family, family=family))
    settings = {"model": model, "use_tqdm_on_load": False, **ROOM, **more}
    with LLM(**settings) as alone:
        expected = answers(alone, PROMPTS[:1])
    place = f"127.0.0.1:{free_port()}"
    offers = {"kv_connectors": ["tcp"], "kv_connectors_config": {"tcp": {"listen": place}}}
    asks = {"kv_connectors": ["tcp"], "kv_connectors_config": {"tcp": {"peers": [place]}}}
    with LLM(**settings, **offers) as one:
        for prompt in PROMPTS:  # the later ones evict the first, whose blocks are then offered
            answers(one, [prompt])
        with LLM(**settings, **asks) as other:
            (peer,) = tiers_of(core_of(other).scheduler.kv.connectors).disk.peers
            (offer,) = {tiers_of(core_of(one).scheduler.kv.connectors).disk.offer}
            while len(peer) < len(offer):
                time.sleep(0.01)
            (output,) = other.generate([{"prompt_token_ids": PROMPTS[0]}], SamplingParams(max_tokens=1), use_tqdm=False)
            assert output.num_cached_tokens >= 80
            assert answers(other, PROMPTS[:1]) == expected
    with LLM(**settings, **asks) as orphan:
        assert answers(orphan, PROMPTS[:1]) == expected, "nobody is there: all of it is computed"
