"""The keyed noise: generator, float32 arithmetic and their documented bounds."""

import math

import numpy as np
import pytest

from core_runtime.sampling.noise import (
    MAX_GUMBEL_RANGE,
    NoiseKey,
    exponential,
    gumbel,
    natural_log,
    words_of,
    words_of_all,
)
from core_runtime.sampling.philox import philox4x32

# Known answers published with the Random123 library for philox4x32-10: counter, key, words.
KNOWN = [
    ([0] * 4, [0] * 2, [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]),
    ([0xFFFFFFFF] * 4, [0xFFFFFFFF] * 2, [0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD]),
    (
        [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
        [0xA4093822, 0x299F31D0],
        [0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1],
    ),
]


@pytest.mark.parametrize(("counter", "key", "expected"), KNOWN)
def test_philox_known_answers(counter, key, expected):
    words = philox4x32(np.array([counter], dtype=np.uint64).T, np.array([key], dtype=np.uint64).T)
    assert words.tolist() == [expected]


def test_philox_many_counters_at_once_equal_one_by_one():
    counters = np.array([counter for counter, _, _ in KNOWN], dtype=np.uint64).T
    keys = np.array([key for _, key, _ in KNOWN], dtype=np.uint64).T
    assert philox4x32(counters, keys).tolist() == [words for _, _, words in KNOWN]


def test_vocabulary_entry_takes_its_word_of_its_group():
    key = NoiseKey(seed=(0x299F31D0 << 32) | 0xA4093822, index=7, choice=2, purpose=3)
    counter = np.array([[11], [7], [2], [3]], dtype=np.uint64)
    group = philox4x32(counter, np.array([[0xA4093822], [0x299F31D0]], dtype=np.uint64))[0]
    assert words_of_all(key, 47)[44:].tolist() == group[:3].tolist()
    assert words_of([key], [np.array([47])])[0][0] == group[3]


def test_chosen_entries_draw_the_same_words_as_all_entries():
    keys = [NoiseKey(seed=seed, index=seed % 5, choice=seed % 3) for seed in (1, 2**63 + 5, 2**64 - 1)]
    ids = [np.array([0, 3, 4, 999]), np.array([500]), np.arange(100, 200)]
    for key, part, words in zip(keys, ids, words_of(keys, ids), strict=True):
        assert words.tolist() == words_of_all(key, 1000)[part].tolist()


def edge_words() -> np.ndarray:
    rng = np.random.default_rng(5)
    ends = np.arange(200_000)
    spread = (2.0 ** rng.uniform(0, 32, 300_000)).astype(np.int64)
    middle = 2**31 - 100_000 + ends
    return np.concatenate([ends, 2**32 - 1 - ends, middle, spread, 2**32 - 1 - spread]).astype(np.uint32)


def test_exponential_and_gumbel_errors_stay_within_the_documented_bounds():
    words = edge_words()
    x = (words.astype(np.longdouble) + np.longdouble(0.5)) / 2**32
    exact = -np.log1p(-x)
    assert np.max(np.abs(exponential(words) - exact) / exact) < 2**-22
    assert np.max(np.abs(gumbel(words) + np.log(exact))) < 3e-6
    assert exponential(words).dtype == gumbel(words).dtype == np.float32


def test_logarithm_is_relatively_exact_near_one_and_far_away():
    values = np.concatenate([np.geomspace(1e-37, 1e37, 100_001), 1 + np.linspace(-1e-3, 1e-3, 10_001)]).astype(
        np.float32
    )
    values = values[values != 1]
    exact = np.log(values.astype(np.longdouble))
    assert np.max(np.abs(natural_log(values) - exact) / np.abs(exact)) < 2**-22
    assert natural_log(np.ones(1, dtype=np.float32))[0] == 0


def test_noise_range_is_finite_and_within_the_bound_used_for_skipping():
    ends = gumbel(np.array([0, 2**32 - 1], dtype=np.uint32))
    assert math.isfinite(ends[0]) and math.isfinite(ends[1])
    assert ends[0] - ends[1] < MAX_GUMBEL_RANGE
    assert ends[0] == pytest.approx(33 * math.log(2)) and ends[1] == pytest.approx(-math.log(33 * math.log(2)))


PINNED_EXPONENTIAL = [788529152, 801112064, 910222866, 998260780, 1060205080, 1060205080, 1068593688, 1102511529]
PINNED_GUMBEL = [1102511529, 1101935539, 1095509907, 1085366801, 1052485525, 1052485525, 3198631067, 3225965013]


def test_noise_bits_are_pinned():
    """The same bits on every machine: these were computed with exact rational arithmetic rounded step by step."""
    words = np.array([0, 1, 12345, 2**24 + 1, 2**31 - 1, 2**31, 3 * 2**30, 2**32 - 1], dtype=np.uint32)
    assert exponential(words).view(np.uint32).tolist() == PINNED_EXPONENTIAL
    assert gumbel(words).view(np.uint32).tolist() == PINNED_GUMBEL
