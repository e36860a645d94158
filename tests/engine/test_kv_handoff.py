"""Prefill apart from decode (P1D1 over `tcp`): what an engine answers on leased blocks has the bits of one engine."""

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from tests.engine.kv_handoffs import connector_of, consuming, decode, handoffs_of, new_port, prefill, producing, told
from tests.tiny_models import save_checkpoint

PROMPT = [1, *(3 + 7 * index % 250 for index in range(96))]
ROOM = {"max_model_len": 128, "num_gpu_blocks_override": 40, "max_num_seqs": 2, "dtype": "float32"}
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=12, ignore_eos=True, logprobs=2, n=2)
DRAFTS = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}


@pytest.mark.parametrize(
    ("family", "more"),
    [("llama", {}), ("gemma3", {}), ("deepseek_v2", {}), ("lfm2", {}), ("llama", DRAFTS)],
    ids=["dense", "window", "latent", "state", "drafts"],
)
def test_two_engines_answer_as_one(family: str, more: dict[str, Any], tmp_path: Path) -> None:
    settings = {
        "model": str(save_checkpoint(tmp_path / family, family=family)),
        "use_tqdm_on_load": False,
        **ROOM,
        **more,
    }
    port = new_port()
    with LLM(**settings) as alone:
        (expected,) = alone.generate([{"prompt_token_ids": PROMPT}], PARAMS, use_tqdm=False)
    with LLM(**settings, **producing(port)) as one, LLM(**settings, **consuming(port)) as other:
        lease = prefill(one, "p", PROMPT)
        output = decode(other, "d", PROMPT, PARAMS, lease)
        assert told(output) == told(expected)
        assert output.num_cached_tokens >= 80
        counts, leased = handoffs_of(other).counts(), handoffs_of(one).counts()
        assert counts["claim.received"] == leased["lease.released"] == 1
        assert counts["claim.pages_announced"] == leased["lease.pages_announced"] > 0
        assert counts["claim.pages_received"] == leased["lease.pages_received"] == leased["lease.pages_sent"] > 0
        assert leased["leases"] == leased["leased_pages"] == counts["claims"] == counts["buffered_bytes"] == 0
        connector_of(one).check_integrity()
