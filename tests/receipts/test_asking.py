"""Who gets a receipt: bodies, the header and the server's own choice; and the arguments of receipts and recorded traffic."""

from types import SimpleNamespace

import pytest

from core.api.errors import RequestError
from core.args.arg import Given
from core_apis.protocol.chat import ChatRequest
from core_apis.receipts import note_receipt
from core_config.arguments.sources import merge
from core_config.served.server import server_config
from core_config.served.server_config import ReceiptSettings, RecordSettings


def noted(mode, given, header):
    body = ChatRequest(messages=[], receipt=given)
    receipts = None if mode == "off" else SimpleNamespace(every=mode == "all")
    note_receipt(receipts, body, {} if header is None else {"x-receipt": header})
    return bool(body.receipt)


@pytest.mark.parametrize(
    ("mode", "given", "header", "gets"),
    [
        ("off", None, None, False),
        ("off", False, None, False),
        ("off", None, "0", False),
        ("ask", None, None, False),
        ("ask", True, None, True),
        ("ask", None, "1", True),
        ("ask", None, "no", False),
        ("ask", False, "1", False),
        ("all", None, None, True),
        ("all", False, None, False),
        ("all", None, "false", False),
    ],
)
def test_the_body_wins_over_the_header_and_that_over_the_server(mode, given, header, gets):
    assert noted(mode, given, header) is gets


@pytest.mark.parametrize(("given", "header"), [(True, None), (None, "1")])
def test_a_server_without_receipts_refuses_to_be_asked(given, header):
    with pytest.raises(RequestError, match="--receipts off") as caught:
        noted("off", given, header)
    assert caught.value.param == "receipt"


def settings(**values):
    problems: list[str] = []
    merged = merge({name: Given(value, "command line") for name, value in values.items()}, {})
    return server_config(merged, problems), problems


def test_arguments_become_settings():
    server, problems = settings()
    assert (server.receipts, server.recording, problems) == (None, None, [])
    server, problems = settings(
        receipts="all", receipt_key="k", record_traffic="d", record_share="0.5", record_size="2097152"
    )
    assert server.receipts == ReceiptSettings(every=True, key_file="k")
    assert server.recording == RecordSettings(directory="d", share=0.5, max_bytes=2 << 20)
    assert problems == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"receipt_key": "k"}, "--receipt-key: has no meaning without receipts"),
        ({"record_traffic": "d", "api_server_count": "2"}, "--record-traffic: one process writes it"),
    ],
)
def test_contradictions_are_problems(values, sentence):
    assert any(problem.startswith(sentence) for problem in settings(**values)[1])
