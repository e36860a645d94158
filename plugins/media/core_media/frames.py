"""Decoding of videos, with limits that are checked before frames are kept.

Owns: the accepted formats, and the frames that a processor sees. Never does: choose which (the processor does), or resize.
Called by: the processing process; scripts that give frames, for `packed_frames`.

The format is found by the file's first bytes and named to FFmpeg, which therefore never tries its readers of playlists:
they open other files and addresses.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from core.api.errors import RequestError
from core_media.config import MediaConfig
from core_media.features import pack, unpack
from core_media.sound.decoding import check_declared

NAMES: Final = "mp4, mov, webm, mkv or avi"
MIMES: Final = {
    "mp4": "mp4", "m4v": "mp4", "quicktime": "mp4", "mov": "mp4", "webm": "matroska", "matroska": "matroska",
    "mkv": "matroska", "msvideo": "avi", "avi": "avi",
}  # fmt: skip
"""Names of formats in types such as video/mp4 → FFmpeg's."""
MOST_FRAMES: Final = 10_000_000
"""Most frames of a file, as it says."""


class Video(NamedTuple):
    """The chosen frames of a video.

    frames: uint8 [n, height, width, 3]. indices: of them in the video. total: its frames. fps: frames a second, or None.
    """

    frames: NDArray[np.uint8]
    indices: list[int]
    total: int
    fps: float | None


Choose = Callable[[int, float | None], Sequence[int]]
"""Returns the frames that a processor sees, of a video with so many frames at so many a second."""


def decoded_video(data: bytes, declared: str, choose: Choose, config: MediaConfig) -> Video:
    """Return the chosen frames of a video's first track, in RGB. Raises RequestError.

    declared: the type that the client named, such as video/mp4; empty: none.
    """
    if not data:
        raise RequestError("the file is empty; expected a video")
    kind = _format_of(data)
    if not kind:
        raise RequestError(f"it is no video that can be read; expected {NAMES}")
    check_declared(declared, kind, MIMES)
    import av

    try:
        with av.open(io.BytesIO(data), format=kind, metadata_errors="ignore") as container:
            total, fps, size = _facts(container)
            total = total or _counted(container)
            indices = _checked(total, fps, size, choose, config)
            return Video(_kept(container, indices, size), indices, total, fps)
    except (RequestError, MemoryError):
        raise
    except Exception as error:  # decoders raise whatever a damaged file leads to
        reason = getattr(error, "strerror", None) or error  # PyAV's own text names a file, which has no name
        raise RequestError(f"the {kind} file is cut or damaged ({reason}); expected a whole one") from error


def packed_frames(frames: Any, fps: float | None, place: str) -> bytes:
    """Return frames that a script gives, as bytes. Raises RequestError."""
    values = np.asarray(frames)
    if values.dtype != np.uint8 or values.ndim != 4 or values.shape[-1] != 3 or not values.size:
        raise RequestError(
            f"{place} has frames {values.dtype} {list(values.shape)}; expected uint8 [frames, height, width, 3].",
            param=place,
        )
    return pack({"frames": values, "fps": np.array(fps or 0.0)})


def given_frames(data: bytes, config: MediaConfig) -> Video:
    """Return what `packed_frames` wrote: all frames are seen. Raises RequestError."""
    arrays = unpack(data)
    frames, fps = arrays["frames"], float(arrays["fps"]) or None
    size = (frames.shape[2], frames.shape[1])
    indices = _checked(len(frames), fps, size, lambda total, _: range(total), config)
    return Video(frames.astype(np.uint8), indices, len(frames), fps)


def _format_of(data: bytes) -> str:
    """Return FFmpeg's name of a file's format; empty for one that is not taken."""
    if data[4:8] == b"ftyp":
        return "mp4"
    if data[:4] == b"RIFF" and data[8:11] == b"AVI":
        return "avi"
    return "matroska" if data[:4] == b"\x1aE\xdf\xa3" else ""


def _facts(container: Any) -> tuple[int, float | None, tuple[int, int]]:
    """Return the number of frames, 0 if the file does not say, frames a second, and width and height. Raises RequestError."""
    tracks = container.streams.video
    if not tracks:
        raise RequestError("the file has no video; expected one track at least")
    track = tracks[0]
    rate = track.average_rate
    return track.frames, float(rate) if rate else None, (track.width, track.height)


def _counted(container: Any) -> int:
    """Return the number of packets, which are not decoded, of a file whose header does not say it."""
    count = sum(bool(packet.size) for packet in container.demux(container.streams.video[0]))
    container.seek(0)
    return count


def _checked(total: int, fps: float | None, size: tuple[int, int], choose: Choose, config: MediaConfig) -> list[int]:
    """Return the chosen frames of a video. Raises RequestError for one that exceeds a limit."""
    if not 0 < total <= MOST_FRAMES:
        raise RequestError(f"the video has {total} frames; expected 1 to {MOST_FRAMES}")
    width, height = size
    if not 0 < width * height <= config.max_image_pixels:
        raise RequestError(
            f"the video's frames have {width} × {height} pixels; 1 to {config.max_image_pixels} are taken (--max-image-pixels)"
        )
    indices = [int(index) for index in choose(total, fps)]
    if len(indices) > config.max_frames:
        raise RequestError(
            f"the model would see {len(indices)} frames of the video; at most {config.max_frames} are taken "
            "(--max-video-frames). Send a part of it"
        )
    return indices


def _kept(container: Any, indices: Sequence[int], size: tuple[int, int]) -> NDArray[np.uint8]:
    """Return the frames with these indices, which rise. Raises RequestError."""
    kept: list[NDArray[np.uint8]] = []
    for number, frame in enumerate(container.decode(video=0)):
        if (frame.width, frame.height) != size:
            raise RequestError(
                f"frame {number} has {frame.width} × {frame.height} pixels, unlike the video's {size[0]} × {size[1]}; "
                "expected one size"
            )
        if len(kept) < len(indices) and number == indices[len(kept)]:
            kept.append(frame.to_ndarray(format="rgb24"))
        if len(kept) == len(indices):
            return np.stack(kept)
    raise RequestError(f"the video ends after {len(kept)} of the {len(indices)} frames to see; expected a whole one")
