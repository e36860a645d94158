"""Parts of `core diff` by themselves: values, records, the report."""

import msgspec
import pytest

from core.api.errors import UserError
from core.commands.main import main
from core_apis.journal.directory import JournalDirectory
from core_apis.journal.records import FileHead, Kind, framed
from core_apis.journal.segments import Segments
from core_apis.traffic.records import RecordedChoice, RecordedPrompt, TrafficRecord, packed, read_traffic, unpacked
from core_commands.replay.comparison import Comparison, RecordDifference, Recorded, compare_texts
from core_commands.replay.report import as_html, as_json
from core_commands.replay.tokens import TokenDifference
from core_commands.replay.values import ValueDifference, compared, value_differences
from core_observers.receipts.receipt import IssuedReceipt
from tests.receipts.test_receipt_parts import RECEIPT

RECORD = TrafficRecord(
    "/v1/completions",
    b'{"prompt": "a", "logprobs": 2}',
    b"\xab\xcd",
    5.0,
    [
        RecordedPrompt(
            packed([1, 2]), [RecordedChoice(0, packed([7, 8, 9]), "length")], IssuedReceipt(RECEIPT, "aa" * 32)
        )
    ],
)


def chat(content="", calls=()):
    rows = [{"function": {"name": name, "arguments": arguments}} for name, arguments in calls]
    return {"choices": [{"message": {"content": content, "tool_calls": rows or None}}]}


@pytest.mark.parametrize(
    ("left", "right", "outcome"),
    [
        ('{"a": 1}', '{"a": 1}', "same bytes"),
        ('{"a": 1}', '{ "a":1 }', "same value"),
        ('{"a": 1, "b": 2}', '{"b": 2, "a": 1}', "same value"),
        ('{"a": 1}', '{"a": 2}', "other value"),
        ('{"a": 1}', '{"a": ', "broken"),
        ("null", "", "broken"),
        ("x", "y", "other value"),
        ("[" * 9000, "1", "broken"),
    ],
)
def test_values_are_the_same_bytes_or_value_another_one_or_broken(left, right, outcome):
    assert compared(left, right) == outcome


def test_calls_are_compared_one_by_one():
    left = chat("", [("look", '{"x": 1}'), ("go", "{}")])
    assert value_differences({}, left, chat("", [("look", '{"x": 1}'), ("go", "{}")])) == []
    [spaces] = value_differences({}, left, chat("", [("look", '{"x":1}'), ("go", "{}")]))
    assert (spaces.kind, spaces.place, spaces.outcome) == ("tool_call", "choice 0, call 0", "same value")
    [name] = value_differences({}, left, chat("", [("look", '{"x": 1}'), ("run", "{}")]))
    assert (name.place, name.outcome) == ("choice 0, call 1", "other value")
    [missing] = value_differences({}, left, chat("", [("look", '{"x": 1}')]))
    assert missing.outcome == "broken" and missing.right == ""


def test_texts_are_json_where_the_body_says_so():
    body = {"response_format": {"type": "json_object"}}
    [value] = value_differences(body, chat('{"a": 1}'), chat('{"a": 2}'))
    assert (value.kind, value.outcome) == ("json", "other value")
    [value] = value_differences({}, chat('{"a": 1}'), chat('{"a": 2}'))
    assert value.kind == "text"
    messages = {"content": [{"type": "tool_use", "name": "f", "input": {"a": 1}}, {"type": "text", "text": "x"}]}
    other = {"content": [{"type": "tool_use", "name": "f", "input": {"a": 2}}, {"type": "text", "text": "x"}]}
    [value] = value_differences({}, messages, other)
    assert (value.kind, value.outcome) == ("tool_call", "other value")


def write(folder, *payloads, kind=Kind.TRAFFIC):
    directory = JournalDirectory(str(folder))
    segments = Segments(directory, FileHead(b"salt", 0), 1 << 20)
    for payload in payloads:
        segments.append(framed(0, 0, kind, payload).data)
    segments.close()
    directory.close()


def test_records_are_read_back_and_damaged_ones_skipped(tmp_path):
    good = msgspec.msgpack.encode(RECORD)
    write(tmp_path / "r", good, b"\x93\x01", good)
    assert list(read_traffic(str(tmp_path / "r"))) == [RECORD, None, RECORD]
    [path] = (tmp_path / "r").glob("*.journal")
    data = bytearray(path.read_bytes())
    data[-40] ^= 1
    path.write_bytes(data[:-5])
    assert list(read_traffic(str(tmp_path / "r"))) == [RECORD, None]
    assert unpacked(RECORD.prompts[0].choices[0].token_ids) == [7, 8, 9]


def test_directories_without_records_are_named(tmp_path):
    for folder, sentence in ((tmp_path / "none", "no directory"), (tmp_path, "no recorded requests")):
        with pytest.raises(UserError, match=sentence):
            list(read_traffic(str(folder)))
    write(tmp_path / "j", b"\x90", kind=Kind.ACCEPTED)
    with pytest.raises(UserError, match="request journal keeps no tokens"):
        list(read_traffic(str(tmp_path / "j")))


def test_a_record_is_compared_without_fields_that_ask_for_numbers():
    record = Recorded.of(3, RECORD)
    assert record.body == {"prompt": "a"} and record.seeds == [1] and record.num_tokens == 3
    assert record.given() == [[[7, 8, 9]]]


def told(text, tokens=None):
    choice = {"text": text} if tokens is None else {"text": text, "token_ids": tokens}
    return {"choices": [choice]}


@pytest.mark.parametrize(
    ("answer", "places", "kinds"),
    [
        (told("one", [7, 8, 9]), [], []),
        (told("one"), [], []),
        (told("two", [7, 8, 1]), [2], ["text"]),
        (told("o", [7, 8]), [2], ["text"]),
        (told("two"), [], ["text"]),
    ],
)
def test_answers_of_a_server_are_compared_as_far_as_it_tells_them(answer, places, kinds):
    record = Recorded.of(0, RECORD)
    record.answer = told("one")
    found = Comparison("l", "r")
    compare_texts(record, answer, found)
    rows = found.rows
    assert [token.index for row in rows for _, _, token in row.tokens] == places
    assert [value.kind for row in rows for value in row.values] == kinds
    assert found.num_requests == 1


def comparison(count=1):
    found = Comparison("<left>", "right & more", num_requests=count, num_tokens=9)
    for number in range(count):
        row = RecordDifference(number, "/v1/x", "<script>alert(1)</script>")
        row.values = [ValueDifference("text", "choice 0", "other value", "</pre><img src=x>" + "ä" * 580, "\ud800")]
        row.tokens = [(0, 0, TokenDifference(3, 5, None, 0.5))]
        found.rows.append(row)
    return found


def test_the_report_escapes_all_text():
    page = as_html(comparison()).decode()
    assert "<script" not in page and "<img" not in page and "<left>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "right &amp; more" in page
    assert "default-src 'none'" in page


def test_the_report_stays_small_however_much_differs():
    page = as_html(comparison(5000))
    assert len(page) <= 2 << 20 and b"more; --json has all of them" in page


def test_the_worst_comes_first():
    found = Comparison("l", "r")
    kinds = {
        "text": [ValueDifference("text", "", "other value", "", "")],
        "json": [ValueDifference("json", "", "other value", "", "")],
        "broken": [ValueDifference("tool_call", "", "broken", "", "")],
        "bytes": [ValueDifference("json", "", "same value", "", "")],
    }
    for name, values in kinds.items():
        found.rows.append(RecordDifference(0, name, "", values=values))
    assert [row.path for row in found.worst()][:2] == ["broken", "json"]
    assert (found.count("json"), found.count("tool_call"), found.count("token")) == (1, 1, 0)
    assert msgspec.json.decode(as_json(found))["differ"] == {"token": 0, "tool_call": 1, "json": 1}


MISTAKES = {
    "nothing": ([], "directory of records is missing"),
    "no right": (["D"], "Expected one right side"),
    "two": (["D", "--right", "a", "--url", "http://x"], "Expected one right side"),
    "no left": (["D", "--url", "http://x"], "--url: needs --left"),
    "no left of a command": (["D", "--right-cmd", "x"], "--right-cmd: needs --left"),
    "open quote": (["D", "--right", "a 'b"], "No closing quotation"),
    "unknown argument": (["D", "--right", "--no-such-thing 3"], "--right: --no-such-thing"),
    "no directory": (["D", "--right", "--max-model-len 64"], "no directory"),
    "no place for the report": (
        ["D", "--right", "a", "--report", "none/r.html"],
        "none/r.html: cannot be written: there is no",
    ),
    "a directory for the JSON": (["D", "--right", "a", "--json", "."], ".: cannot be written: it is a directory"),
    "kind": (["D", "--right", "a", "--fail-on", "speed"], "--fail-on"),
    "more words": (["D", "extra", "--right", "a"], "unexpected"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_sentences_and_exit_with_2(name, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    words, sentence = MISTAKES[name]
    assert main(["diff", *words]) == 2
    assert sentence in capfd.readouterr().err
