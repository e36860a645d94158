"""Pictures, sounds, videos and rows in their place that are damaged.

Owns: writing good ones, and reading as the process that decodes does. Called by: the table of targets.
"""

import base64
import contextlib
import math
from collections.abc import Callable
from pathlib import Path

import msgspec

from core.api.errors import RequestError
from core_media.config import MediaConfig, Place
from core_media.frames import decoded_video
from core_media.pictures import decoded as decoded_picture
from core_media.reading.embeds import embedded
from core_media.reading.rows import Given
from core_media.sound.decoding import decoded as decoded_sound

PICTURES = ("1.png", "2.jpg", "3.webp", "4.gif", "5.tiff", "6.bmp")
SOUNDS = ("1.wav", "2.mp3", "3.flac", "4.ogg", "5.m4a", "6.webm")
ROWS = ("rows.pt", "rows.safetensors")
GRID = "grid.pt"
VIDEOS = ("1.mp4", "2.webm", "3.avi")
RATE = 16_000
LONGEST = 10.0
CONFIG = MediaConfig(
    model="",
    model_type="",
    placeholder="",
    token_id=0,
    limits={},
    others={"video": Place("v", 1)},
    max_image_pixels=1 << 20,
)
WITH_ROWS = msgspec.structs.replace(CONFIG, row_size=16, merged=2, around_rows={"image": ("", "")})


def make_pictures(folder: Path) -> None:
    """Write a picture in each format."""
    from PIL import Image

    picture = Image.radial_gradient("L").resize((40, 30)).convert("RGB")
    for name in PICTURES:
        picture.save(folder / name)


def make_sounds(folder: Path) -> None:
    """Write a sound in each format."""
    import av
    import numpy as np

    kinds = {"wav": ("wav", "pcm_s16le"), "mp3": ("mp3", "mp3"), "flac": ("flac", "flac"), "ogg": ("ogg", "libopus"),
             "m4a": ("mp4", "aac"), "webm": ("webm", "libopus")}  # fmt: skip
    samples = np.sin(np.arange(RATE // 2) * 0.1).astype(np.float32)[None] * 0.3
    for name in SOUNDS:
        kind, codec = kinds[name.partition(".")[2]]
        with av.open(str(folder / name), "w", format=kind) as container:
            track = container.add_stream(codec, rate=RATE if codec != "libopus" else 48_000, layout="mono")
            frame = av.AudioFrame.from_ndarray(samples, format="fltp", layout="mono")
            frame.sample_rate = RATE
            fifo = av.AudioResampler(
                track.format, "mono", track.rate, frame_size=track.codec_context.frame_size or None
            )
            for piece in [*fifo.resample(frame), *fifo.resample(None), None]:
                container.mux(track.encode(piece))


def make_videos(folder: Path) -> None:
    """Write a video in each format."""
    import av
    import numpy as np

    for name in VIDEOS:
        kind = name.partition(".")[2]
        with av.open(str(folder / name), "w", format=kind) as container:
            track = container.add_stream("libvpx" if kind == "webm" else "mpeg4", rate=4)
            track.width, track.height, track.pix_fmt = 32, 32, "yuv420p"
            for shade in range(0, 200, 40):
                picture = av.VideoFrame.from_ndarray(np.full((32, 32, 3), shade, np.uint8), format="rgb24")
                container.mux(track.encode(picture))
            container.mux(track.encode(None))


def make_rows(folder: Path) -> None:
    """Write rows of a picture in both formats, and their grid."""
    import torch
    from safetensors.torch import save_file

    values = torch.linspace(-1, 1, 6 * WITH_ROWS.row_size).reshape(6, -1)
    torch.save(values.half(), folder / ROWS[0])
    save_file({"rows": values.bfloat16()}, folder / ROWS[1])
    torch.save(torch.tensor([[1, 4, 6]]), folder / GRID)


def read_rows(folder: Path) -> None:
    """Read each tensor with the grid."""
    grid = base64.b64encode((folder / GRID).read_bytes()).decode()

    def read(data: bytes) -> None:
        made = embedded(Given(base64.b64encode(data).decode(), grid), "image", "r", WITH_ROWS)
        assert len(made.rows) == 4 * WITH_ROWS.row_size * len(made.text)
        assert math.prod(made.grid) == len(made.text)

    for name in ROWS:
        _tried(read, folder / name)


def read_pictures(folder: Path) -> None:
    """Decode each picture."""
    for name in PICTURES:
        _tried(lambda data: decoded_picture(data, "", CONFIG.max_image_pixels), folder / name)


def read_sounds(folder: Path) -> None:
    """Decode each sound."""
    for name in SOUNDS:
        _tried(lambda data: decoded_sound(data, RATE, LONGEST), folder / name)


def read_videos(folder: Path) -> None:
    """Decode each video."""
    for name in VIDEOS:
        _tried(lambda data: decoded_video(data, "", lambda total, fps: range(0, total, 2), CONFIG), folder / name)


def _tried(decode: Callable[[bytes], object], file: Path) -> None:
    with contextlib.suppress(RequestError):
        decode(file.read_bytes())
