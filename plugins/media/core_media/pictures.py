"""Decoding of pictures, with limits that are checked before anything is decoded.

Owns: the accepted formats, the check of a header, and the form in which transformers reads a picture. Never does: resize
(the processor does). Called by: the processing process.
"""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Final

from core.api.errors import RequestError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS: Final = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF")
NAMES: Final = ", ".join(FORMATS)
MIMES: Final = {"image/jpg": "JPEG", "image/x-png": "PNG", "image/pjpeg": "JPEG", "image/x-ms-bmp": "BMP"}
"""Other names of the formats than image/FORMAT."""


def decoded(data: bytes, declared: str, max_pixels: int) -> Image:
    """Return a picture as transformers reads it: its first frame, turned as EXIF says, in RGB. Raises RequestError.

    declared: the type that the client named, such as image/png; empty: none.
    """
    from PIL import Image, ImageOps

    Image.MAX_IMAGE_PIXELS = None  # the check below is ours, and names its argument
    if not data:
        raise RequestError("the file is empty; expected a picture")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of damaged metadata, which does not matter here
        try:
            picture = Image.open(io.BytesIO(data), formats=FORMATS)
        except Exception as error:  # decoders raise whatever a damaged header leads to
            raise RequestError(f"it is no picture that can be read; expected {NAMES}") from error
        found = str(picture.format)
        _check_declared(declared, found)
        width, height = picture.size
        if width * height > max_pixels:
            raise RequestError(
                f"the picture has {width} × {height} pixels; at most {max_pixels} are taken (--max-image-pixels)"
            )
        try:
            picture.load()
            return ImageOps.exif_transpose(picture).convert("RGB")
        except MemoryError:
            raise
        except Exception as error:
            raise RequestError(f"the {found} file is cut or damaged ({error}); expected a whole one") from error


def _check_declared(declared: str, found: str) -> None:
    """Raise RequestError for a picture of another format than its client said."""
    kind = declared.partition(";")[0].strip().lower()
    if kind in ("", "image/*", "application/octet-stream", "binary/octet-stream"):
        return
    if MIMES.get(kind, kind.removeprefix("image/").upper()) != found:
        raise RequestError(f"it is said to be {kind[:100]}, but holds a {found} picture; name the format that it has")
