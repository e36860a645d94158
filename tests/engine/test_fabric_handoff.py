"""Two engines, the second of which answers on pages that a library has brought from the first. For `make test-fabrics`."""

from pathlib import Path
from typing import Any

import pytest

from core import LLM, SamplingParams
from tests.engine.kv_handoffs import connector_of, consuming, decode, new_port, prefill, producing, told
from tests.tiny_models import save_checkpoint

PACKAGES = {"NixlConnector": "nixl_cu12", "MooncakeConnector": "mooncake"}
PROMPT = [1, *(3 + 7 * index % 250 for index in range(200))]
PARAMS = SamplingParams(max_tokens=12, temperature=0.8, seed=5, n=2, logprobs=2, ignore_eos=True)
SIZES: dict[str, Any] = {"max_model_len": 256, "max_num_seqs": 4, "dtype": "float32", "skip_tokenizer_init": True}


def moved_by(name: str, given: dict[str, Any]) -> dict[str, Any]:
    transfer = {**given["kv_transfer_config"], "kv_connector": name}
    return {**SIZES, **given, "kv_transfer_config": transfer}


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "lfm2"])
@pytest.mark.parametrize("name", PACKAGES)
def test_two_engines_answer_as_one(tmp_path: Path, family: str, name: str) -> None:
    pytest.importorskip(PACKAGES[name], reason="make test-fabrics installs it")
    model = str(save_checkpoint(tmp_path / "model", family=family))
    port = new_port()
    with LLM(model, **SIZES) as alone:
        expected = told(alone.generate([{"prompt_token_ids": PROMPT}], PARAMS)[0])
    with LLM(model, **moved_by(name, producing(port))) as one, LLM(model, **moved_by(name, consuming(port))) as other:
        for number in range(3):
            output = decode(other, f"r{number}", PROMPT, PARAMS, prefill(one, f"p{number}", PROMPT))
            assert told(output) == expected
            other.reset_prefix_cache()
        counts = connector_of(other).report_counts()
    assert counts["claim.received"] == 3 and counts["claim.pages_received"] > 0 and not counts.get("claim.pages_bad", 0)


@pytest.mark.parametrize(("of", "to"), [(2, 2), (1, 2), (2, 1)])
@pytest.mark.parametrize("name", PACKAGES)
def test_ranks_of_any_number_answer_as_one(tmp_path: Path, name: str, of: int, to: int) -> None:
    """Every rank copies its part of a page to memory that rank 0 sees, which hands whole pages to the library."""
    pytest.importorskip(PACKAGES[name], reason="make test-fabrics installs it")
    model = str(save_checkpoint(tmp_path / "model", family="lfm2"))
    port = new_port()
    with LLM(model, **SIZES) as alone:
        expected = told(alone.generate([{"prompt_token_ids": PROMPT}], PARAMS)[0])
    with (
        LLM(model, **moved_by(name, producing(port)), tensor_parallel_size=of) as one,
        LLM(model, **moved_by(name, consuming(port)), tensor_parallel_size=to) as other,
    ):
        output = decode(other, "r", PROMPT, PARAMS, prefill(one, "p", PROMPT))
        assert told(output) == expected
        counts = connector_of(other).report_counts()
    assert counts["claim.received"] == 1 and counts["claim.pages_received"] > 0 and not counts.get("claim.pages_bad", 0)
