"""Log-probabilities normalize by partial sums of spans of the vocabulary, with the value of one float64 sum."""

import numpy as np
import pytest

from core_runtime.sampling.logprobs import token_logprobs


@pytest.mark.parametrize("size", [1, 100, 8192, 8193, 49_152, 151_936])
def test_sums_by_spans_are_those_of_one_float64_sum(size):
    logits = (np.random.default_rng(size).standard_normal(size) * 4).astype(np.float32)
    largest = logits.max()
    total = float(np.log(np.exp(logits - largest).sum(dtype=np.float64)))
    assert token_logprobs(logits, size // 2, 0).logprobs == [float(logits[size // 2]) - (float(largest) + total)]
