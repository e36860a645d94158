"""Every row of the family table against transformers: logits of whole prompts, chunks and batches, and greedy tokens."""

from __future__ import annotations

import pytest

from core import LLM, SamplingParams
from core.api.errors import UserError
from core.models.families import FAMILIES, decoder_spec
from tests.families import results
from tests.families.architectures import ENCODERS, tiny_config, variants
from tests.families.comparison import distances, hidden_distance
from tests.families.harness import Harness
from tests.families.oracle import NUM_TOKENS, reference

TOLERANCE = 2e-4
TOLERANCES: dict[tuple[str, str], tuple[float, str]] = {}
"""Variant → its own tolerance, and why."""
REFUSED = {
    ("qwen3_moe", "window"): "use_sliding_window is set",
    ("llama", "dynamic"): "rope_type is 'dynamic'",
}
"""Variants that a row does not serve, and what its error says."""
QUICK = ("llama", "gemma3_text", "deepseek_v3", "lfm2")
"""The model types whose tokens are compared in every run of the suite."""

MODEL_TYPES = [model_type for family in FAMILIES for model_type in family.model_types]
ROWS = [(model_type, variant) for model_type in MODEL_TYPES for variant in variants(model_type)]
SERVED = [row for row in ROWS if row not in REFUSED]
DECODERS = [row for row in SERVED if row[0] not in ENCODERS]


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_every_row_has_a_reference(model_type):
    assert variants(model_type), f"tests/families has no tiny configuration of {model_type}"


@pytest.mark.parametrize("model_type, variant", SERVED)
def test_logits_equal_transformers(model_type, variant):
    expected = reference(model_type, variant)
    harness = Harness(expected.path)
    if model_type in ENCODERS:
        found = {"whole": hidden_distance(harness, expected)}
    else:
        found = distances(harness, expected)
    results.write(model_type, variant, family=harness.spec.family, difference=max(found.values()))
    allowed, _ = TOLERANCES.get((model_type, variant), (TOLERANCE, ""))
    assert max(found.values()) < allowed, found


@pytest.mark.parametrize("model_type, variant", [row for row in ROWS if row in REFUSED])
def test_what_a_row_does_not_serve_is_refused(model_type, variant):
    with pytest.raises(UserError, match=REFUSED[model_type, variant]):
        decoder_spec(tiny_config(model_type, variant).to_dict())


def _engine_rows():
    """The first variant of each row; all but a few are left to `make test-models`."""
    seen = set()
    for model_type, variant in DECODERS:
        if model_type in seen:
            continue
        seen.add(model_type)
        marks = () if model_type in QUICK else pytest.mark.models
        yield pytest.param(model_type, variant, marks=marks)


@pytest.mark.parametrize("model_type, variant", _engine_rows())
def test_tokens_equal_transformers(model_type, variant):
    """Through the whole engine: chunks, a prefix that is found again, and a pool that is too small for everybody."""
    expected = reference(model_type, variant)
    if not expected.tokens:
        pytest.skip("no prompt of this model has a continuation beyond rounding")
    same = {"prompt_token_ids": expected.prompt}
    others = [{"prompt_token_ids": ids} for ids in expected.prompts]
    greedy = SamplingParams(temperature=0, max_tokens=NUM_TOKENS, ignore_eos=True)
    tokens = {}
    with _llm(expected.path, max_num_batched_tokens=64) as llm:
        tokens["whole"] = _generate(llm, [same], greedy)[0]
        tokens["from the prefix cache"] = _generate(llm, [same], greedy)[0]
    tight = {"max_num_batched_tokens": 5, "max_num_seqs": 4, "enable_prefix_caching": False}
    with _llm(expected.path, num_gpu_blocks_override=_few_blocks(expected.path), **tight) as llm:
        tokens["in chunks, preempted"] = _generate(llm, [same, *others, same], greedy)[0]
        preemptions = llm._client.stats().num_preemptions
    wrong = {way: found for way, found in tokens.items() if found != expected.tokens}
    assert not wrong, f"expected {expected.tokens}"
    assert preemptions > 0
    results.write(model_type, variant, tokens=NUM_TOKENS)


def _llm(path, **settings):
    return LLM(
        str(path),
        dtype="float32",
        max_model_len=80,
        block_size=4,
        kv_cache_memory_bytes=16 << 20,
        use_tqdm_on_load=False,
        **settings,
    )


def _generate(llm, prompts, params):
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def _few_blocks(path):
    return 40
