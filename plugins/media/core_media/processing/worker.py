"""The work of a processing process: an item is decoded, given to the model's processor, and what that gives is checked.

Owns: the choice of a decoder, and the checks of a processor's results. Never does: talk to the parent. Called by: the
processing process; the kit, for the checks.

Processors may be anyone's, and towers are transformers' own, which index with what they are given: whatever cannot be an
argument of a tower is refused here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from core.api.errors import UserError
from core.plugin.hookspecs import LoadContext
from core.plugin.table import PluginTable
from core_media.config import AUDIO, IMAGE, NOUNS, VIDEO, MediaConfig
from core_media.contract import Features, Item
from core_media.frames import decoded_video, given_frames
from core_media.pictures import decoded
from core_media.pruning import num_kept
from core_media.sound.decoding import decoded as decoded_sound

MAX_CHARACTERS: Final = 16 << 20
"""Most characters of the text that stands for an item: a million rows."""
MAX_BYTES: Final = 2 << 30
"""Most bytes of an item's features."""
PARTS: Final = {AUDIO: "sampling_rate", VIDEO: "frames"}
"""Modality → what a processor of it has as well."""


class WrongFeatures(Exception):
    """A processor's result that no tower takes; the sentence says why."""


class Worker:
    """The decoders and the processor of one model. Raises CoreError for a processor that cannot be built.

    identity: of the plugin and of what it depends on. name: of the plugin.
    """

    def __init__(self, config: MediaConfig) -> None:
        row = config.processor
        context = LoadContext(arguments=config.processor_arguments, options={"media": config})
        self._processor = PluginTable([row]).load(row.kind, row.name, context)
        self._config = config
        self.name = row.name
        identity = self._processor.identity
        if not isinstance(identity, str) or not identity:
            raise UserError(f"The processor '{self.name}' has the identity {identity!r:.80}; expected a text.")
        for modality in config.places if config.sound is None else (AUDIO,):
            part = PARTS.get(modality)
            if part is not None and not getattr(self._processor, part, None):
                raise UserError(
                    f"The processor '{self.name}' has no {part}, so it takes no {NOUNS[modality]}s; name another one with "
                    f"--mm-processor, or start with --limit-mm-per-prompt {modality}=0."
                )
        self.identity = f"{row.name} {row.distribution} {row.version} {row.sha256} {identity}"
        if config.pruning:
            self.identity += f" evs {config.pruning}"

    def run(
        self,
        modality: str,
        data: bytes,
        declared: str = "",
        options: Mapping[str, Any] | None = None,
        *,
        frames: bool = False,
        company: bool = False,
    ) -> Features:
        """Return the features of a file's bytes. Raises RequestError, WrongFeatures.

        declared: type that the client named. frames: whether `data` are frames that a script gave. company: see `Item`.
        """
        content = self._decoded(modality, data, declared, frames)
        made = checked(self._processor.process(Item(modality, content, options or {}, company)))
        if modality != VIDEO or not self._config.pruning:
            return made
        return made._replace(text=_pruned(made, self._config.places[VIDEO].placeholder, self._config.pruning))

    def _decoded(self, modality: str, data: bytes, declared: str, frames: bool) -> Any:
        config = self._config
        if modality == IMAGE:
            return decoded(data, declared, config.max_image_pixels)
        if modality == AUDIO:
            sound = config.sound
            if sound is not None:
                return decoded_sound(data, self._processor.sampling_rate, sound.max_seconds)
            return decoded_sound(data, self._processor.sampling_rate, config.max_seconds, declared)
        if frames:
            return given_frames(data, config)
        return decoded_video(data, declared, self._frames, config)

    def _frames(self, total: int, fps: float | None) -> Sequence[int]:
        """Return the frames that the processor chooses. Raises WrongFeatures for a choice that is none."""
        return checked_frames(self._processor.frames(total, fps), total)


def _pruned(made: Features, placeholder: str, rate: float) -> str:
    """Return the text of a video of which a share of the rows is left out. Raises WrongFeatures."""
    count = len(made.text) // len(placeholder)
    grid = made.arrays.get("video_grid_thw", np.zeros(1))
    time = int(grid.reshape(-1)[0])
    if not 0 < time <= count or made.text != placeholder * count:
        raise WrongFeatures("a video has no grid, or text between its rows; expected rows alone (--video-pruning-rate)")
    return placeholder * num_kept(count, time, rate)


def checked(made: Any) -> Features:
    """Return a processor's result. Raises WrongFeatures."""
    if not isinstance(made, tuple) or len(made) != 2:
        raise WrongFeatures(f"process gave a {type(made).__name__}; expected Features(text, arrays)")
    text, arrays = made
    if not isinstance(text, str) or len(text) > MAX_CHARACTERS:
        what = f"{len(text)} characters" if isinstance(text, str) else f"a {type(text).__name__}"
        raise WrongFeatures(f"its text is {what}; expected a text of at most {MAX_CHARACTERS} characters")
    if not isinstance(arrays, Mapping) or not arrays:
        raise WrongFeatures(f"its arrays are {arrays!r:.80}; expected at least one, by name")
    for name, array in arrays.items():
        _check_array(name, array)
    size = sum(array.nbytes for array in arrays.values())
    if size > MAX_BYTES:
        raise WrongFeatures(f"its arrays have {size} bytes; expected at most {MAX_BYTES}")
    return Features(text, arrays)


def _check_array(name: Any, array: Any) -> None:
    """Raise WrongFeatures for what is no array of finite numbers, or has no name."""
    if not isinstance(name, str) or not isinstance(array, np.ndarray) or array.dtype.kind not in "biuf":
        found = getattr(array, "dtype", type(array).__name__)
        raise WrongFeatures(f"the array {name!r:.80} is of type {found}; expected a numpy array of numbers")
    # A sum costs a sixth of a test of each number, and is finite in float64 if they are.
    if array.dtype.kind == "f" and not np.isfinite(np.sum(array, dtype=np.float64)):
        raise WrongFeatures(f"the array '{name}' has numbers that are not finite")


def checked_frames(indices: Any, total: int) -> list[int]:
    """Return the chosen frames of a video. Raises WrongFeatures for indices that do not rise, or that it has not."""
    chosen = [int(index) for index in indices]
    rising = all(first < second for first, second in pairwise(chosen))
    if not chosen or not rising or not 0 <= chosen[0] <= chosen[-1] < total:
        raise WrongFeatures(f"frames chose {chosen[:8]} of {total} frames; expected rising indices of these")
    return chosen
