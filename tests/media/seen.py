"""Videos of random pixels, and their files."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

Frames = np.ndarray[Any, Any]


def frames(seed: int = 0, count: int = 8, width: int = 64, height: int = 48) -> Frames:
    """uint8 [count, height, width, 3], of squares that move, which survive compression."""
    base = np.random.default_rng(seed).integers(0, 255, (height // 8, width // 8, 3), dtype=np.uint8)
    still = base.repeat(8, 0).repeat(8, 1)
    return np.stack([np.roll(still, 4 * index, 1) for index in range(count)])


def video_file(pictures: Frames, rate: int = 4, kind: str = "mp4", codec: str = "mpeg4") -> bytes:
    import av

    stream = io.BytesIO()
    with av.open(stream, "w", format=kind) as container:
        track = container.add_stream(codec, rate=rate)
        track.height, track.width = pictures.shape[1:3]
        track.pix_fmt = "yuv420p"
        container.start_encoding()
        for picture in pictures:
            for packet in track.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")):
                container.mux(packet)
        for packet in track.encode():
            container.mux(packet)
    return stream.getvalue()
