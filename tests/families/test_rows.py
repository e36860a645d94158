"""Every row of the family table against transformers: logits of whole prompts, chunks and batches, and greedy tokens."""

from pathlib import Path

import pytest

from core import LLM, SamplingParams
from core.api.errors import ConfigError, UserError
from core_models import remote
from core_runtime.models.families import decoder_spec, families
from tests.families import document, results
from tests.families.architectures import ENCODERS, USUAL, tiny_config, variants
from tests.families.comparison import distances
from tests.families.expected import MORE_TOKENS, NAMED, QUICK, REFUSED, TOLERANCE, TOLERANCES, UNMENDED
from tests.families.harness import LONGEST, Harness, cached_mixers
from tests.families.oracle import NUM_TOKENS, reference
from tests.families.wrappers import WRAPPED_TEXT

FEW_BLOCKS = (4, 6, 8, 11, 15, 20, 25, 30, 36, 44, 60)
"""Sizes of a pool; the first one that is taken has room for one of four requests, or a little more."""

MODEL_TYPES = [
    model_type
    for family in families()
    for model_type in (*family.model_types, *family.wrappers)
    if model_type not in WRAPPED_TEXT
]
ELSEWHERE = [model_type for family in remote.ROWS for model_type in family.model_types]
"""`test_remote` compares them."""
ROWS = [(model_type, variant) for model_type in MODEL_TYPES for variant in variants(model_type)]
SERVED = [row for row in ROWS if row not in REFUSED]
DECODERS = [row for row in SERVED if row[0] not in ENCODERS]


@pytest.mark.parametrize("model_type", [name for name in MODEL_TYPES if name not in (*ELSEWHERE, *NAMED)])
def test_every_row_has_a_reference(model_type):
    assert variants(model_type), f"tests/families has no tiny configuration of {model_type}"


def _logit_rows():
    """Every variant; configurations of sizes alone are left to `make test-models`, but for a few."""
    for model_type, variant in SERVED:
        marks = []
        if variant == USUAL and model_type not in QUICK:
            marks.append(pytest.mark.models)
        wrong = UNMENDED.get((model_type, variant))
        if wrong is not None:
            marks.append(pytest.mark.xfail(reason=wrong, strict=True, raises=AssertionError))
        yield pytest.param(model_type, variant, marks=marks)


@pytest.mark.parametrize("model_type, variant", _logit_rows())
def test_logits_equal_transformers(model_type, variant):
    expected = reference(model_type, variant)
    harness = Harness(expected.path)
    found = distances(harness, expected)
    allowed, _ = TOLERANCES.get((model_type, variant), (TOLERANCE, ""))
    assert max(found.values()) < allowed, found
    results.write(model_type, variant, family=harness.spec.family, difference=max(found.values()))


@pytest.mark.parametrize("model_type, variant", [row for row in ROWS if row in REFUSED])
def test_what_a_row_does_not_serve_is_refused(model_type, variant):
    with pytest.raises(UserError, match=REFUSED[model_type, variant]):
        decoder_spec(tiny_config(model_type, variant).to_dict())


def _engine_rows():
    """The first variant of each row, and a few others; all but a few are left to `make test-models`."""
    seen = set()
    for model_type, variant in DECODERS:
        if model_type in seen and (model_type, variant) not in MORE_TOKENS:
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
    with _llm(expected.path, max_num_batched_tokens=64, kv_cache_memory_bytes=4 << 20) as llm:
        tokens["whole"] = _generate(llm, [same], greedy)[0]
        tokens["from the prefix cache"] = _generate(llm, [same], greedy)[0]
    with _tight_llm(expected.path) as llm:
        tokens["in chunks, preempted"] = _generate(llm, [same, *others, same], greedy)[0]
        preemptions = llm.stats().num_preemptions
    wrong = {way: found for way, found in tokens.items() if found != expected.tokens}
    assert not wrong, f"expected {expected.tokens}"
    assert preemptions > 0 or not _grows(expected.path)
    results.write(model_type, variant, tokens=NUM_TOKENS)


def test_an_encoder_generates_nothing():
    with pytest.raises(ConfigError, match=r"is an encoder \(bert\), which generates no text"):
        _llm(reference("bert").path, runner="generate")


@pytest.mark.models
def test_the_document_has_every_family():
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    absent = [family.name for family in families() if f"\n| {family.name} |" not in text]
    assert not absent, "python -m tests.families.document > docs/models.md"
    unmeasured = document.missing(families(), results.read())
    assert not unmeasured, "some are measured by `make test` only: run `pytest tests/families` here first"


def _llm(path, **settings):
    return LLM(str(path), dtype="float32", max_model_len=LONGEST, block_size=4, use_tqdm_on_load=False, **settings)


def _tight_llm(path):
    """An engine with the smallest pool that holds one request."""
    settings = {"max_num_batched_tokens": 5, "max_num_seqs": 4, "enable_prefix_caching": False}
    for num_blocks in FEW_BLOCKS:
        try:
            return _llm(path, num_gpu_blocks_override=num_blocks, **settings)
        except ConfigError as error:
            if "KV cache of" not in str(error):
                raise
    raise AssertionError(f"no pool of {FEW_BLOCKS[-1]} blocks holds one request")


def _grows(path):
    """Whether a small pool makes requests give way: some layer keeps every token, and none a state, which takes most of it."""
    kinds = {mixer.kind for mixer in cached_mixers(Harness(path).spec)}
    return "full" in kinds and "state" not in kinds


def _generate(llm, prompts, params):
    outputs = llm.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]
