"""The video processors of transformers, without torchvision.

Owns: their classes with torch in place of torchvision, the choice of frames, and one call. Never does: decode a video. Called
by: the processing process, the processor of pictures.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, Final

import numpy as np

from core.api.errors import RequestError
from core_media.contract import Features
from core_media.frames import Choose, Video

CLASSES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType({
    "qwen2_vl": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen2_5_omni": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen2_5_omni_thinker": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen2_5_vl": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLVideoProcessor"),
    "qwen3_vl_moe": ("qwen3_vl", "Qwen3VLVideoProcessor"),
})  # fmt: skip
"""Model type → transformers' module and class."""
FPS: Final = 2
"""Frames a second that Qwen's models see where nobody says otherwise."""
ARRAYS: Final = ("pixel_values_videos", "video_grid_thw", "second_per_grid_ts")
TORCHVISION: Final = (
    "torchvision",
    "torchvision.transforms",
    "torchvision.transforms.v2",
    "torchvision.transforms.v2.functional",
)


def video_class(model: str) -> Any:
    """Return the class of a checkpoint's video processor that works without torchvision; None for other families."""
    file = Path(model) / "config.json"
    kind = CLASSES.get(json.loads(file.read_text()).get("model_type", "")) if file.is_file() else None
    if kind is None:
        return None
    module, name = kind
    # One of these modules imports torchvision without asking whether it is there.
    absent = [each for each in TORCHVISION if each not in sys.modules]
    sys.modules.update((each, ModuleType(each)) for each in absent)
    for outer, inner in pairwise(TORCHVISION):
        if outer in absent:
            setattr(sys.modules[outer], inner.rpartition(".")[2], sys.modules[inner])
    try:
        found = importlib.import_module(f"transformers.models.{module}.video_processing_{module}")
    finally:
        for each in absent:
            del sys.modules[each]
    base = importlib.import_module("transformers.video_processing_utils").BaseVideoProcessor
    base.resize, base.normalize, base.convert_to_rgb = _resize, _normalize, _convert_to_rgb
    return getattr(found, name)


def chosen_frames(processor: Any, options: Mapping[str, Any]) -> Choose:
    """Return what chooses frames as the processor does. options: `num_frames` or `fps`, see `--media-io-kwargs`."""
    given = {"fps": FPS} if not options else dict(options)

    def choose(total: int, fps: float | None) -> Sequence[int]:
        from transformers.video_utils import VideoMetadata

        if total <= processor.temporal_patch_size:
            return range(total)
        if given.get("num_frames", 0) > total:
            return range(total)
        metadata = VideoMetadata(total_num_frames=total, fps=fps or 24.0)
        # Qwen2-VL's steps of float32 arrive at the frame behind the last one for some lengths, such as 59 frames at 1 a second.
        return [int(index) for index in processor.sample_frames(metadata, **given) if index < total]

    return choose


def processed_video(processor: Any, video: Video, options: Mapping[str, Any]) -> Features:
    """Return the text that replaces a video's placeholder, and its features. Raises RequestError.

    options: see `chosen_frames`.
    """
    from transformers.video_utils import VideoMetadata

    height, width = video.frames.shape[1:3]
    metadata = VideoMetadata(
        total_num_frames=video.total, fps=video.fps, width=width, height=height, frames_indices=list(video.indices)
    )
    try:
        merged = processor._merge_kwargs(tokenizer_init_kwargs=processor.tokenizer.init_kwargs)
        settings = {**merged["videos_kwargs"], "do_sample_frames": False, "return_tensors": "pt"}
        if getattr(processor.video_processor, "cap_pixels_per_frame", False) is None:
            settings["cap_pixels_per_frame"] = False  # what None means, with a warning
        settings["video_metadata"] = [metadata]
        if hasattr(processor, "load_audio_from_video"):  # of models that hear as well, whose videos are silent here
            # Its rows of time are as far apart as `fps` says, which is 2 where nobody says it.
            own = {**settings, **({"fps": options["fps"]} if "fps" in options else {})}
            merged |= {"videos_kwargs": own, "load_audio_from_video": False}
            made, texts = processor._process_videos([video.frames], **merged)
            made["second_per_grid_ts"] = made["video_second_per_grid"]
        else:
            made, texts = processor._process_videos([video.frames], **settings)
    except (ValueError, TypeError) as error:
        raise RequestError(f"the model's processor refuses the video: {error}") from error
    arrays = {name: made[name] for name in ARRAYS if name in made}
    return Features(
        texts[0],
        {name: np.asarray(each, None if hasattr(each, "dtype") else np.float32) for name, each in arrays.items()},
    )


def _resize(self: Any, image: Any, size: Any, resample: Any = None, antialias: bool = True, **kwargs: Any) -> Any:
    """Resize frames [n, c, h, w] or [b, n, c, h, w] of uint8 as torchvision does, whose way on a processor is this one."""
    import torch

    modes = {2: "bilinear", 3: "bicubic"}
    mode = modes.get(int(resample)) if resample is not None else "bilinear"
    if mode is None:
        raise ValueError(f"resample {resample} is not served for videos; expected one of {sorted(modes)}")
    new = [size.height, size.width]
    if list(image.shape[-2:]) == new:
        return image
    flat = image.reshape(-1, *image.shape[-3:])
    made = torch.nn.functional.interpolate(flat, size=new, mode=mode, align_corners=False, antialias=antialias)
    return made.reshape(*image.shape[:-2], *new)


def _normalize(self: Any, image: Any, mean: Any, std: Any, inplace: bool = False, **kwargs: Any) -> Any:
    import torch

    mean, std = (torch.as_tensor(each, dtype=image.dtype).view(-1, 1, 1) for each in (mean, std))
    return (image.sub_(mean) if inplace else image.sub(mean)).div_(std)


def _convert_to_rgb(self: Any, video: Any) -> Any:
    return video  # frames are decoded to RGB
