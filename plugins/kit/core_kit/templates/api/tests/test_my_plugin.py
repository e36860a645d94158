"""The kit's conformance suite, and one answer."""

import pytest
from core_my_plugin.answer import MyPluginAnswer

from core_frontend.api.outputs import CompletionOutput, RequestOutput
from core_kit import cases


@pytest.mark.parametrize("case", cases("api", "my_plugin"), ids=str)
def test_conformance(case):
    case()


def test_an_event_is_in_capital_letters():
    completion = CompletionOutput(index=0, text="so", token_ids=[5])
    output = RequestOutput(request_id="r", prompt="a", prompt_token_ids=[4], outputs=[completion], finished=False)
    assert MyPluginAnswer(None, None, "my_plugin-1", 0).event(output) == b'data: {"id":"my_plugin-1","text":"SO"}\n\n'
