"""The video processors of transformers, without torchvision.

Owns: their classes with torch in place of torchvision, the choice of frames, and one call. Never does: decode a video. Called
by: the processing process, the processor of pictures.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np

from core.api.errors import RequestError
from core_media.contract import Features
from core_media.frames import Choose, Video

CLASSES: Final[Mapping[str, tuple[str, str]]] = MappingProxyType({
    "gemma4": ("gemma4", "Gemma4VideoProcessor"),
    "qwen2_vl": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen2_5_omni": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen2_5_omni_thinker": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen2_5_vl": ("qwen2_vl", "Qwen2VLVideoProcessor"),
    "qwen3_vl": ("qwen3_vl", "Qwen3VLVideoProcessor"),
    "qwen3_vl_moe": ("qwen3_vl", "Qwen3VLVideoProcessor"),
    "qwen3_5": ("qwen3_vl", "Qwen3VLVideoProcessor"),
    "qwen3_5_moe": ("qwen3_vl", "Qwen3VLVideoProcessor"),
})  # fmt: skip
"""Model type → transformers' module and class."""
FPS: Final = 2
"""Frames a second that Qwen's models see where nobody says otherwise."""
USUAL_FPS: Final = 24.0
"""Frames a second of a video that does not say it."""
ARRAYS: Final = (
    "pixel_values_videos", "video_grid_thw", "second_per_grid_ts", "video_position_ids", "num_frames_per_video",
)  # fmt: skip
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
        found = _module(f"transformers.models.{module}.video_processing_{module}")
    finally:
        for each in absent:
            del sys.modules[each]
    base = importlib.import_module("transformers.video_processing_utils").BaseVideoProcessor
    base.resize, base.normalize, base.convert_to_rgb = _resize, _normalize, _convert_to_rgb
    return getattr(found, name)


def _module(name: str) -> ModuleType:
    """Return a module of transformers, which may use torchvision's functions, as `tvF`, where torchvision is missing."""
    spec = None if name in sys.modules else importlib.util.find_spec(name)
    if spec is None or spec.loader is None:
        return importlib.import_module(name)
    made = importlib.util.module_from_spec(spec)
    vars(made)["tvF"] = SimpleNamespace(resize=_resized, InterpolationMode=object)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made


def chosen_frames(processor: Any, options: Mapping[str, Any]) -> Choose:
    """Return what chooses frames as the processor does. options: `num_frames` or `fps`, see `--media-io-kwargs`."""
    by_time = hasattr(processor, "temporal_patch_size")  # others have a number of frames, whatever a video's length
    given = dict(options) or ({"fps": FPS} if by_time else {"num_frames": processor.num_frames})
    fewest = processor.temporal_patch_size if by_time else 1

    def choose(total: int, fps: float | None) -> Sequence[int]:
        from transformers.video_utils import VideoMetadata

        if total <= fewest:
            return range(total)
        rate = fps or USUAL_FPS
        wanted = given
        if not by_time and "fps" in given:  # the base class would prefer its own number of frames
            wanted = {"num_frames": max(1, int(total / rate * given["fps"]))}
        if wanted.get("num_frames", 0) > total:
            return range(total)
        metadata = VideoMetadata(total_num_frames=total, fps=rate)
        # Qwen2-VL's steps of float32 arrive at the frame behind the last one for some lengths, such as 59 frames at 1 a second.
        return [int(index) for index in processor.sample_frames(metadata, **wanted) if index < total]

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
    return _resized(image, [size.height, size.width], resample)


def _resized(image: Any, size: Sequence[int], interpolation: Any = None, antialias: bool = True) -> Any:
    """Resize frames [n, c, h, w] or [b, n, c, h, w] of uint8 as torchvision does, whose way on a processor is this one.

    size: height and width. Raises ValueError for an interpolation that is not served.
    """
    import torch

    modes = {2: "bilinear", 3: "bicubic"}
    mode = modes.get(int(interpolation)) if interpolation is not None else "bilinear"
    if mode is None:
        raise ValueError(f"resample {interpolation} is not served for videos; expected one of {sorted(modes)}")
    new = list(size)
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
