"""The benchmark of accuracy: its arithmetic, and what it finds for the quantization of both real models."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.accuracy import PROSE, Score, divergence, engine_arguments, plain_checkpoint, score
from tests.real_models import gemma3_path, smollm2_path

ALLOWED_DIVERGENCE = 0.003
ALLOWED_OF_CACHE = 0.005
NOISE = 0.006
"""Of the loss: two to three times the standard error that the benchmark prints."""


def test_the_loss_is_the_rise_of_the_perplexity_with_its_standard_error() -> None:
    best = Score("bfloat16", 200, torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64), [])
    worse = Score("int8", 100, torch.tensor([-1.1, -2.1, -3.1], dtype=torch.float64), [])
    loss, error = worse.loss(best)
    assert loss == pytest.approx(worse.perplexity / best.perplexity - 1)
    assert error == pytest.approx(0, abs=1e-12)


def test_the_divergence_is_that_of_whole_distributions_with_the_unnamed_tokens_as_one() -> None:
    best = {1: math.log(0.5), 2: math.log(0.25), 3: math.log(0.2)}
    other = {1: math.log(0.4), 2: math.log(0.4), 4: math.log(0.1)}
    want = 0.5 * math.log(0.5 / 0.4) + 0.25 * math.log(0.25 / 0.4) + 0.25 * math.log(0.25 / 0.2)
    assert divergence(best, other) == pytest.approx(want)
    assert divergence(best, best) == pytest.approx(0)


def test_a_method_names_its_scheme_and_the_precision_of_inputs() -> None:
    assert engine_arguments("float32") == {"dtype": "float32"}
    asked = engine_arguments("int8/int8_row")
    assert asked == {"dtype": "bfloat16", "quantization": "int8", "quantization_config": {"activation": "int8_row"}}
    assert engine_arguments("kv/int4") == {"dtype": "bfloat16", "kv_cache_dtype": "int4"}


def test_help_tells_how_to_choose_a_model() -> None:
    command = [sys.executable, "-m", "benchmarks.accuracy", "--help"]
    told = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout
    assert "--model" in told and "--quantization" in told


@pytest.mark.models
@pytest.mark.parametrize("find", [smollm2_path, gemma3_path])
def test_int8_weights_and_inputs_lose_almost_nothing(find, tmp_path: Path) -> None:
    model = plain_checkpoint(str(find()), tmp_path)
    text = PROSE.read_text(encoding="utf-8")
    best = score(model, "bfloat16", text)
    rounded = score(model, "int8", text)
    loss, _ = rounded.loss(best)
    print(f"loss {loss:.2%}, divergence {rounded.divergence(best):.3%}, {len(best.logprobs)} tokens")
    assert rounded.divergence(best) <= ALLOWED_DIVERGENCE
    assert loss <= ALLOWED_DIVERGENCE + NOISE
    by_row = score(model, "int8/int8_row", text)
    assert by_row.divergence(best) > 3 * rounded.divergence(best), "a scale for a whole row is what the groups are for"


@pytest.mark.models
@pytest.mark.parametrize("find", [smollm2_path, gemma3_path])
def test_a_cache_of_4_bit_values_loses_half_a_percent_at_most(find, tmp_path: Path) -> None:
    model = plain_checkpoint(str(find()), tmp_path)
    text = PROSE.read_text(encoding="utf-8")
    best = score(model, "kv/bfloat16", text)
    rounded = score(model, "kv/int4", text)
    loss, _ = rounded.loss(best)
    assert rounded.divergence(best) <= ALLOWED_OF_CACHE
    assert loss <= ALLOWED_OF_CACHE + NOISE
    assert rounded.nbytes < 0.45 * best.nbytes
