"""The processor: pictures of any shape become squares, each with as many rows as the tower has patches."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from core.api.errors import RequestError, UserError
from core_media.contract import Features, Item

MEAN = np.array([0.48145466, 0.4578275, 0.40821073], np.float32)
STD = np.array([0.26862954, 0.26130258, 0.27577711], np.float32)
"""Colours that CLIP was trained with."""


class Squares:
    """Implements `core_media.contract.Processor`. Raises UserError for a model of another type than LLaVA."""

    def __init__(self, media: Any, arguments: Any) -> None:
        if media.model_type != "llava":
            raise UserError(f"models of type '{media.model_type}' are not LLaVA; leave --mm-processor out.")
        vision = json.loads((Path(media.model) / "config.json").read_text())["vision_config"]
        self._side = vision["image_size"]
        self._grey = arguments.grey
        self._text = media.placeholder * (self._side // vision["patch_size"]) ** 2
        self.identity = f"squares 1 of {self._side} with {self._grey} for {vision['patch_size']}"

    def process(self, item: Item) -> Features:
        """Return one placeholder for each row, and `pixel_values` [1, 3, side, side]."""
        if item.options:
            raise RequestError(f"mm_processor_kwargs {sorted(item.options)} are not understood; leave them out")
        picture = item.content
        scale = self._side / max(picture.size)
        width, height = (max(round(scale * each), 1) for each in picture.size)
        colours = np.asarray(picture.resize((width, height)), np.float32) / 255
        pixels = np.full((self._side, self._side, 3), self._grey, np.float32)
        top, left = (self._side - height) // 2, (self._side - width) // 2
        pixels[top : top + height, left : left + width] = colours
        return Features(self._text, {"pixel_values": ((pixels - MEAN) / STD).transpose(2, 0, 1)[None]})
