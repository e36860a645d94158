"""Handoffs between engines with other numbers of ranks: answers on leased blocks have the bits of one engine, also where a page
is divided otherwise, layers have states, or ranks have the same latents."""

from pathlib import Path
from typing import Any

import pytest
from transformers import Qwen3NextConfig

from core import LLM, SamplingParams
from core_kv_connectors.peers.arrangement import SentPages
from tests.engine.kv_handoffs import connector_of, consuming, decode, handoffs_of, new_port, prefill, producing, told
from tests.ranks.test_ranks import EXPERTS, SMALL
from tests.tiny_models import save_checkpoint, save_model

PROMPT = [1, *(3 + index % 250 for index in range(96))]
ROOM = {"max_model_len": 128, "num_gpu_blocks_override": 40, "max_num_seqs": 2, "dtype": "float32"}
PARAMS = SamplingParams(temperature=0.8, seed=5, max_tokens=8, ignore_eos=True, logprobs=2, n=2)
TALL = {"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 16}
DELTA = {"full_attention_interval": 2, "linear_num_key_heads": 4, "linear_num_value_heads": 8}
DELTA |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
CHANGES: dict[str, dict[str, Any]] = {
    "llama": TALL,
    "shared heads": {"num_key_value_heads": 2},
    "deepseek_v2": {"n_routed_experts": 8, "n_group": 2},
    "gemma3": {},
    "lfm2": {},
}


def saved_model(name: str, folder: Path) -> str:
    """A checkpoint whose layers four ranks may share. few delta: with two heads."""
    if name in ("delta", "few delta"):
        heads = {} if name == "few delta" else TALL
        shape = {**SMALL, **heads, **EXPERTS, **DELTA, "shared_expert_intermediate_size": 64}
        return str(save_model(folder / "delta", Qwen3NextConfig(**shape)))
    family = "llama" if name == "shared heads" else name
    return str(save_checkpoint(folder / name, family=family, **CHANGES[name]))


def ranks(number: int) -> dict[str, Any]:
    return {"tensor_parallel_size": number} if number > 1 else {}


@pytest.mark.parametrize(
    ("name", "of", "to"),
    [
        ("llama", 1, 2),
        ("llama", 2, 1),
        ("llama", 2, 4),
        ("llama", 4, 2),
        ("shared heads", 2, 4),
        ("shared heads", 4, 2),
        ("shared heads", 4, 4),
        ("deepseek_v2", 1, 2),
        ("deepseek_v2", 2, 2),
        ("deepseek_v2", 4, 2),
        ("lfm2", 1, 2),
        ("lfm2", 2, 1),
        ("lfm2", 4, 2),
        ("delta", 1, 2),
        ("delta", 2, 4),
        ("delta", 4, 2),
        ("few delta", 2, 4),
        ("few delta", 4, 1),
        pytest.param("gemma3", 1, 2, marks=pytest.mark.slow),
        pytest.param("gemma3", 2, 1, marks=pytest.mark.slow),
    ],
)
def test_blocks_of_one_engine_serve_another_with_other_ranks(name: str, of: int, to: int, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"model": saved_model(name, tmp_path), "use_tqdm_on_load": False, **ROOM}
    with LLM(**settings) as alone:
        (output,) = alone.generate([{"prompt_token_ids": PROMPT}], PARAMS, use_tqdm=False)
        expected = told(output)
    port = new_port()
    with (
        LLM(**settings, **producing(port), **ranks(of)) as one,
        LLM(**settings, **consuming(port), **ranks(to)) as other,
    ):
        answer = decode(other, "a", PROMPT, PARAMS, prefill(one, "a", PROMPT))
        assert told(answer) == expected
        assert answer.num_cached_tokens >= 80, handoffs_of(other).counts()
        counts = handoffs_of(other).counts()
        assert counts["claim.pages_received"] == counts["claim.pages_announced"] and not counts["claim.pages_bad"]
        assert not counts["buffered_bytes"] and not connector_of(other).claimed()
        connector = connector_of(one)
        if name == "deepseek_v2":
            assert SentPages(connector._shape).nbytes(0) * of == connector._page_bytes, "one rank's latents are sent"
        other.reset_prefix_cache()
        lease = prefill(one, "b", PROMPT)
        connector.cleared()
        answer = decode(other, "b", PROMPT, PARAMS, lease)
        assert told(answer) == expected and not answer.num_cached_tokens, "the lease has gone, and all is computed"


def test_drafts_and_sleep_with_states_in_other_ranks(tmp_path: Path) -> None:
    """Drafts keep a copy of each state, and leases end with the cache that a sleep drops."""
    drafts = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
    settings: dict[str, Any] = {"model": saved_model("lfm2", tmp_path), "use_tqdm_on_load": False, **ROOM}
    with LLM(**settings) as alone:
        expected = told(alone.generate([{"prompt_token_ids": PROMPT}], PARAMS, use_tqdm=False)[0])
    settings |= {"enable_sleep_mode": True, **drafts}
    port = new_port()
    with (
        LLM(**settings, **producing(port), **ranks(4)) as one,
        LLM(**settings, **consuming(port), **ranks(2)) as other,
    ):
        lease = prefill(one, "a", PROMPT)
        one.sleep(2)
        one.wake_up()
        answer = decode(other, "a", PROMPT, PARAMS, lease)
        assert told(answer) == expected and not answer.num_cached_tokens
        other.sleep(2)
        other.wake_up()
        answer = decode(other, "b", PROMPT, PARAMS, prefill(one, "b", PROMPT))
        assert told(answer) == expected and answer.num_cached_tokens >= 80
        assert not handoffs_of(one).counts()["leases"] and not handoffs_of(other).counts()["buffered_bytes"]


def test_what_does_not_fit_is_refused_by_name_and_computed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Stages have layers of their own, and no slices of each."""
    settings: dict[str, Any] = {"model": saved_model("llama", tmp_path), "use_tqdm_on_load": False, **ROOM}
    port = new_port()
    with (
        LLM(**settings, **producing(port)) as one,
        LLM(**settings, **consuming(port), pipeline_parallel_size=2) as other,
    ):
        expected = told(one.generate([{"prompt_token_ids": PROMPT}], PARAMS, use_tqdm=False)[0])
        answer = decode(other, "a", PROMPT, PARAMS, prefill(one, "a", PROMPT))
        assert told(answer) == expected and not answer.num_cached_tokens
    assert "1 ranks instead of 2: these pages are not divided by heads" in caplog.text
