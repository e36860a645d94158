"""The kit's conformance suite, and one answer."""

import numpy as np
import pytest
from core_my_plugin.manifest import Arguments
from core_my_plugin.processor import Passages

from core_frontend.io.contract import Output
from core_kit import cases


@pytest.mark.parametrize("case", cases("io_processor", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_the_nearest_passage_comes_first():
    processor = Passages(Arguments(passages=1))
    data = processor.parse_request({"question": "Who?", "document": "It rained.\n\nAda wrote it."})
    assert processor.pre_process(data).prompts == ["Who?", "It rained.", "Ada wrote it."]
    outputs = [Output(np.float32(vector), [1]) for vector in ([1, 0], [0, 1], [0.8, 0.6])]
    [best] = processor.post_process(data, outputs)["passages"]
    assert best == {"index": 1, "text": "Ada wrote it.", "score": pytest.approx(0.8)}
