"""Bodies of multipart/form-data: what is read, however it is cut, and what is refused."""

from __future__ import annotations

import pytest

from core.api.errors import RequestError
from core_apis.forms import (
    LONGEST_FIELD,
    LONGEST_HEADER,
    MOST_HEADERS,
    MOST_PARTS,
    MOST_SEMICOLONS,
    Form,
    FormReader,
    read_form,
)

TYPE = "multipart/form-data; boundary=B"
BODY = (
    b'--B\r\nContent-Disposition: form-data; name="model"\r\n\r\nwhisper\r\n'
    b'--B\r\ncontent-disposition: form-data; name="file"; filename="a.wav"\r\nContent-Type: audio/wav\r\n\r\n\r\n--A\r\n\r\n'
    b'--B\r\nContent-Disposition: form-data; name="empty"\r\n\r\n\r\n--B--\r\n'
)


def part(content: bytes = b"x", disposition: bytes = b'form-data; name="n"', more: bytes = b"") -> bytes:
    return b"--B\r\ncontent-disposition: " + disposition + b"\r\n" + more + b"\r\n" + content + b"\r\n"


def read(body: bytes, size: int | None = None) -> tuple[Form, bytes]:
    size = size or max(len(body), 1)
    return read_form([body[start : start + size] for start in range(0, len(body), size)], TYPE)


@pytest.mark.parametrize("size", [None, 1, 2, 3, 7, 64])
def test_a_form_is_taken_apart_however_it_is_cut(size: int | None) -> None:
    form, file = read(BODY, size)
    assert form.fields == {"model": ["whisper"], "empty": [""]}
    assert (form.filename, file) == ("a.wav", b"\r\n--A\r\n")


def test_bytes_of_a_file_are_returned_as_they_come() -> None:
    reader = FormReader(TYPE)
    assert reader.write(part(b"", b'form-data; name="file"; filename="a"')[:-2] + b"abc") == b"abc"
    assert reader.write(b"def\r\n-") == b"def"
    assert reader.write(b"-") == b""
    assert reader.write(b"-\r\n--B--") == b"\r\n---"
    assert reader.end().filename == "a"


def test_a_form_that_ends_anywhere_too_early_is_refused() -> None:
    for end in range(len(BODY) - 5):
        with pytest.raises(RequestError, match="multipart/form-data"):
            read(BODY[:end])


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "text/plain",
        "multipart/form-data",
        "multipart/mixed; boundary=B",
        'multipart/form-data; boundary=""',
        "multipart/form-data; boundary=\xff",
        "multipart/form-data; boundary=" + 71 * "x",
    ],
)
def test_other_content_types_and_boundaries_are_a_415(kind: str) -> None:
    with pytest.raises(RequestError, match="multipart/form-data") as caught:
        read_form([BODY], kind)
    assert caught.value.status == 415


@pytest.mark.parametrize(
    "kind", ['Multipart/Form-Data ; charset=utf-8; Boundary="B"', "multipart/form-data;boundary=B"]
)
def test_content_types_are_read_in_every_spelling(kind: str) -> None:
    assert read_form([BODY], kind)[0].fields["model"] == ["whisper"]


@pytest.mark.parametrize(
    ("disposition", "filename"),
    [
        ('form-data; name="file"; filename="é;\\"x\\".wav"'.encode(), 'é;"x".wav'),
        (b'form-data; name="file"; filename="\xe9.wav"', "\ufffd.wav"),
        (b"form-data; name=file; filename=a.wav", "a.wav"),
        (b'form-data; name="file"; filename=""', ""),
        (b"form-data; name=\"file\"; filename*=UTF-8''%C3%A9%20.wav", "é .wav"),
        (b"form-data; name=\"file\"; filename*=no-charset\x00''%ff", "\ufffd"),
        (b'form-data; name="file"; filename="plain"; filename*=utf-8\'\'other', "plain"),
    ],
)
def test_names_of_files_are_read_in_every_spelling(disposition: bytes, filename: str) -> None:
    form, file = read(part(b"x", disposition) + b"--B--")
    assert (form.filename, file) == (filename, b"x")


@pytest.mark.parametrize("size", [None, 1, 5])
@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        (b"", "ends before"),
        (b"--C\r\n--C--", "ends before"),
        (part(b"x\r\n--BX"), "followed by something else"),
        (part(b"x\r\n--B-x"), "followed by something else"),
        (part(b"x", b'form-data; filename="a"'), "no name"),
        (b"--B\r\n\r\nx\r\n--B--", "no name"),
        (b"--B\r\nno header\r\n\r\nx\r\n--B--", "invalid character"),
        (b"--B\r\n" + b"a" * 2 * LONGEST_HEADER, "header size"),
        (b"--B\r\na:" + b" " * 2 * LONGEST_HEADER, "header size"),
        (part(more=b"a: b\r\n" * MOST_HEADERS), "header count"),
        (part(b"x", b"form-data; name=n" + b";" * MOST_SEMICOLONS), "semicolons"),
        (part() * (MOST_PARTS + 1), f"more than {MOST_PARTS} parts"),
        (part(b"y" * (LONGEST_FIELD + 1)), f"'n' has more than {LONGEST_FIELD} bytes"),
        (part(b"\xff"), "'n' is not UTF-8"),
        (part(b"x", b'form-data; name="other"; filename="a"'), "once, in the part 'file'"),
        (part(b"x", b'form-data; name="file"; filename="a"') * 2, "once, in the part 'file'"),
    ],
)
def test_malformed_bodies_are_a_sentence_wherever_they_are_cut(body: bytes, sentence: str, size: int | None) -> None:
    with pytest.raises(RequestError, match=sentence) as caught:
        read(body + b"--B--", size) if body.endswith(b"\r\n") else read(body, size)
    assert caught.value.status == 400


@pytest.mark.parametrize("size", [None, 1, 5])
def test_text_around_the_parts_is_ignored(size: int | None) -> None:
    assert read(b"a -\r\n-- preamble\r\n" + BODY + b"--BX\r\n--B\r\n", size) == read(BODY)
