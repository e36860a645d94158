"""A keyword that there is not is told with the one that was meant."""

from typing import Any

import msgspec
import pytest

from core import BeamSearchParams, PoolingParams, SamplingParams
from core.api.errors import nearest


@pytest.mark.parametrize(
    "make, keyword, told",
    [
        (SamplingParams, "temprature", "SamplingParams has no parameter 'temprature'. Did you mean 'temperature'?"),
        (SamplingParams, "guided_decoding", "Write structured_outputs="),
        (SamplingParams, "zzz", "SamplingParams has no parameter 'zzz'.$"),
        (PoolingParams, "dimension", "Did you mean 'dimensions'?"),
        (BeamSearchParams, "beam_with", "Did you mean 'beam_width'?"),
    ],
)
def test_a_wrong_keyword_names_the_right_one(make: Any, keyword: str, told: str) -> None:
    with pytest.raises(TypeError, match=told.replace("?", r"\?")):
        make(**{keyword: 1})


def test_the_rest_is_as_it_was() -> None:
    params = SamplingParams(temperature=0.5, stop=["a"])
    copied = msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams)
    assert copied == params and type(copied) is SamplingParams
    with pytest.raises(TypeError, match="beam_width"):
        BeamSearchParams()


@pytest.mark.parametrize("name, valid", [("foo", ["tools", "stop"]), ("/api/chat", ["/health", "/ping"])])
def test_nothing_far_fetched_is_proposed(name: str, valid: list[str]) -> None:
    assert nearest(name, valid) == ""
