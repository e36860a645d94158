"""Processors of others, in one file each: a sound one for LLaVA, and what goes wrong in it."""

from pathlib import Path

from core.api.config import ResolvedPlugin
from core.plugin.manifest import sha256_of

SOURCE = '''
import json, os, sys, time
from pathlib import Path
from typing import Annotated
import msgspec
import numpy as np
from core.api.errors import RequestError
from core.plugin.hookspecs import PluginSpec, hookimpl
from core_media.contract import Features

CONTRACT = 1
KIND = "processor"


class Arguments(msgspec.Struct, frozen=True):
    tone: Annotated[float, msgspec.Meta(description="What is added to each number.")] = 0.0
    broken: Annotated[bool, msgspec.Meta(description="Whether nothing can be built.")] = False


@hookimpl
def core_spec():
    return PluginSpec(name="mine", summary="plain pixels", arguments=Arguments, capabilities={"modalities": MODALITIES})


@hookimpl
def core_load(context):
    arguments = context.arguments or Arguments()
    if arguments.broken:
        raise KeyError("patch_size")
    return Plain(context.options["media"], arguments)


class Plain:
    """Width and colour of a picture say what goes wrong with it."""

    def __init__(self, media, arguments):
        self._text, self._tone = media.placeholder, arguments.tone
        self.identity = f"plain {arguments.tone}"

    def process(self, item):
        width, _ = item.content.size
        text, arrays = self._text * 4, {}
        pixels = np.asarray(item.content.resize((28, 28)), np.float32) / 255 + self._tone
        pixels = (pixels - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        arrays["pixel_values"] = pixels.transpose(2, 0, 1)[None].copy()
        trouble = TROUBLES.get(width, "")
        exec(trouble, globals(), locals_ := {"text": text, "arrays": arrays})
        return locals_.get("made", Features(locals_["text"], locals_["arrays"]))
'''
TROUBLES = {
    101: "raise ValueError('no such colour')",
    102: "while True: time.sleep(0.01)",
    103: "hold = bytearray(8 << 30)",
    104: "os._exit(3)",
    105: "text = text[: len(text) // 4]",
    106: "text = text * 2",
    107: "text = 'no row'",
    108: "arrays = {'pixel_values': arrays['pixel_values'] * np.nan}",
    109: "arrays = {'pixel_values': np.array([object()])}",
    110: "made = 'features'",
    111: "arrays = {}",
    112: "text = 7",
    113: "arrays = {'other_values': arrays['pixel_values']}",
    114: "arrays = {'pixel_values': arrays['pixel_values'][:, :, :5]}",
    115: "raise RequestError('the picture is not pretty')",
    116: "text = text * (5 << 20)",
    117: "sys.exit(0)",
    118: "while not Path(ITEM_FILE).exists(): time.sleep(0.01)",
    119: "Path(ITEM_FILE).touch()",
}
"""Width of a picture → what the processor does with it."""


MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
"""CLIP's colours."""


def write_processor(path: Path, modalities: tuple[str, ...] = ("image",), *, colours: bool = False) -> ResolvedPlugin:
    """Write the plugin `mine` and return its row. colours: whether numbers are those of CLIP."""
    mean, std = (MEAN, STD) if colours else ([0.0], [1.0])
    constants = f"TROUBLES = {TROUBLES!r}\nMODALITIES = {list(modalities)!r}\nMEAN, STD = {mean}, {std}\n"
    constants += f"ITEM_FILE = {str(path.with_suffix('.seen'))!r}\n"
    path.write_text(constants + SOURCE)
    return ResolvedPlugin(kind="processor", name="mine", target=f"file:{path}", sha256=sha256_of(path))
