"""The benchmark of a layer of experts: the bytes that it counts are those of the experts that were read."""

import pytest

from benchmarks.experts import Layer, Shape, mxfp4, q4_k, q6_k


@pytest.mark.parametrize(("first", "second", "bits"), [(q4_k, q6_k, (4.625, 6.5625)), (mxfp4, mxfp4, (4.25, 4.25))])
def test_bytes_are_those_of_the_experts_that_were_read(first, second, bits):
    layer = Layer(Shape(6, 2, 256, 256, first, second), threads=1)
    exact = 256 * 256 * (2 * bits[0] + bits[1]) / 8
    assert exact <= layer.expert_bytes <= 1.02 * exact
    assert layer.seconds(1)[1] == 2
    assert layer.seconds(64)[1] == 6
    seconds, speed, operations = layer.measure(1)
    assert speed == pytest.approx(2 * layer.expert_bytes / seconds)
    assert operations == pytest.approx(6 * 2 * 256 * 256 / seconds)
