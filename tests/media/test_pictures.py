"""Files of pictures: odd ones are read as transformers reads them, bad ones are refused before they are decoded."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image
from transformers.image_utils import load_image

from core.api.errors import RequestError
from core_media.pictures import decoded
from tests.media.checkpoints import file_of, picture

MOST = 1_000_000


def huge_png() -> bytes:
    """A PNG that says to have 50,000 × 50,000 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 50_000, 50_000, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(bytes(5_000_000)))
        + chunk(b"IEND", b"")
    )


def odd() -> dict[str, bytes]:
    base = picture(0, 31, 17)
    turned = Image.Exif()
    turned[0x0112] = 6
    deep = Image.fromarray(np.arange(400, dtype=np.uint16).reshape(20, 20) * 150)
    return {
        "palette": file_of(base.convert("P")),
        "cmyk": file_of(base.convert("CMYK"), "JPEG"),
        "sixteen bits": file_of(deep),
        "transparent": file_of(base.convert("RGBA")),
        "grey": file_of(base.convert("L")),
        "bilevel": file_of(base.convert("1")),
        "turned": file_of(base, "JPEG", exif=turned),
        "animation": file_of(base, "GIF", save_all=True, append_images=[picture(1, 31, 17)]),
        "one pixel": file_of(picture(0, 1, 1)),
        "thin": file_of(picture(0, 1, 10_000)),
        "webp": file_of(base, "WEBP"),
        "bmp": file_of(base, "BMP"),
        "tiff": file_of(base, "TIFF"),
    }


@pytest.mark.parametrize("name", odd())
def test_odd_pictures_are_read_as_transformers_reads_them(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    data = odd()[name]
    path = tmp_path_factory.mktemp("odd") / "file"
    path.write_bytes(data)
    expected = load_image(str(path))
    found = decoded(data, "", MOST)
    assert found.mode == "RGB"
    assert np.array_equal(np.asarray(found), np.asarray(expected.convert("RGB")))


@pytest.mark.parametrize(
    ("data", "declared", "sentence"),
    [
        (b"", "", "empty"),
        (b"GIF89a", "", "no picture"),
        (b"<svg/>", "image/svg+xml", "no picture"),
        (b"%PDF-1.4", "", "no picture"),
        (file_of(picture())[:300], "image/png", "cut or damaged"),
        (file_of(picture(), "JPEG")[:-200], "", "cut or damaged"),
        (file_of(picture()), "image/jpeg", "holds a PNG picture"),
        (file_of(picture()), "text/html", "holds a PNG picture"),
        (huge_png(), "image/png", "50000 × 50000 pixels"),
    ],
)
def test_bad_pictures_are_refused(data: bytes, declared: str, sentence: str) -> None:
    with pytest.raises(RequestError) as caught:
        decoded(data, declared, MOST)
    assert sentence in str(caught.value)


def test_a_damaged_body_is_refused_wherever_it_is_damaged() -> None:
    whole = file_of(picture(0, 20, 20))
    for at in range(8, len(whole), 61):
        damaged = bytearray(whole)
        damaged[at] ^= 0xFF
        try:
            assert decoded(bytes(damaged), "", MOST).mode == "RGB"
        except RequestError:
            continue
    assert decoded(whole, "image/png; charset=binary", MOST).size == (20, 20)
    assert Image.open(io.BytesIO(whole)).size == (20, 20)
