"""The choice of an engine: fronts that know nothing of each other find the same one, unless it has too much to do."""

from collections import Counter

import pytest

from core.api.messages import EngineRequest
from core.api.sampling_params import SamplingParams
from core_frontend.group.prefix_keys import prefix_keys
from core_frontend.group.router import SLACK_S, Router

KEYS = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(1, 401)]


def homes(router: Router) -> dict[int, int]:
    return {key: router.choose([key], [0.0])[0] for key in KEYS}


def test_fronts_find_the_same_home_and_homes_are_spread() -> None:
    first, second = (homes(Router(10, num_routers=4)) for _ in range(2))
    assert first == second
    assert set(first.values()) == set(range(10))
    assert max(Counter(first.values()).values()) < 2 * len(KEYS) / 10


def test_only_the_prefixes_of_an_engine_that_went_find_another_home() -> None:
    router = Router(10, num_routers=4)
    before = homes(router)
    router.shut(3)
    after = homes(router)
    assert 3 not in after.values()
    assert {key for key in KEYS if before[key] != after[key]} == {key for key in KEYS if before[key] == 3}
    router.open(3)
    assert homes(router) == before


def test_an_engine_with_too_much_to_do_is_passed_over() -> None:
    router = Router(10, num_routers=4)
    first, second, *_ = router.homes(KEYS[0])
    router.own[first] = SLACK_S / 4
    assert router.choose(KEYS[:1], [0.0])[0] == first
    router.own[first] = SLACK_S / 3  # each of the other three fronts is expected to have sent as much
    assert router.choose(KEYS[:1], [0.0])[0] == second
    router.own[first], router.reported[first] = 0.0, 1.0
    assert router.choose(KEYS[:1], [0.0])[0] == second


def test_a_front_alone_spreads_new_prompts_evenly_and_sends_known_ones_back() -> None:
    router = Router(2)
    for key in KEYS:
        engine, cached = router.choose([key], [0.0])
        assert cached == -1
        router.own[engine] += 0.1
    assert abs(router.own[0] - router.own[1]) < 0.15
    for key in KEYS[:10]:
        engine, _ = router.choose([key], [0.0])
        assert router.choose([key, key + 1], [0.0, 0.0]) == (engine, 0)
        router.own[engine] += 10.0
        assert router.choose([key, key + 1], [9.9, 20.0])[0] == engine, "what it saves outweighs the wait"
        assert router.choose([key], [1.0])[0] != engine
        router.own[engine] -= 10.0


def test_without_an_engine_there_is_no_choice() -> None:
    router = Router(2)
    router.shut(0)
    router.shut(1)
    with pytest.raises(IndexError):
        router.choose(KEYS[:1], [0.0])


def test_prompts_with_the_same_beginning_share_its_keys() -> None:
    def keys(tokens: list[int], **fields: str) -> list[int]:
        request = EngineRequest("r", 0, tokens, SamplingParams(), 1)
        for name, value in fields.items():
            setattr(request, name, value)
        return prefix_keys(request)[0]

    long = list(range(1000))
    assert keys(long)[:5] == keys([*long[:300], *long])[:5] and keys(long)[5:] != keys([*long[:300], *long])[5:]
    assert len(keys(long)) == 6 and len(keys([1])) == 1
    assert prefix_keys(EngineRequest("r", 0, long * 2, SamplingParams(), 1))[1:] == (
        [16, 32, 64, 128, 256, 512, 1024],
        5,
    )
    others = [keys(long, tenant="t"), keys(long, cache_salt="s"), keys(long, adapter="a")]
    assert not set(keys(long)).intersection(*others)
