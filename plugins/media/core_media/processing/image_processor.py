"""The processor of transformers for one model, reduced to single pictures.

Owns: building it, and one call of it for a picture. Never does: resize or normalize itself, decode a
picture, or tokenize. Called by: the processor `transformers`.
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any, Final

import numpy as np

from core.api.errors import RequestError, UserError
from core_media.config import IMAGE, VIDEO, MediaConfig
from core_media.contract import Features, Item
from core_media.processing.fingerprint import fingerprint
from core_media.processing.processor_files import processor_files
from core_media.processing.videos import video_class

OF_A_PICTURE: Final = ("pixel_values", "image_sizes")
"""Features with one entry a picture, of processors that treat a single picture differently."""
MARKS: Final = ("use_image_special_tokens",)
"""Arguments of a processor that its handling of pictures takes beside those of the image processor."""


class ImageProcessor:
    """The processor of one checkpoint. Raises UserError if transformers cannot build it.

    identity: digest of everything besides the picture that its features depend on.
    processor: transformers' own.
    """

    def __init__(self, config: MediaConfig) -> None:
        import torch
        import transformers

        torch.set_num_threads(1)  # one picture at a time, beside an engine that needs the cores
        without_video()
        try:
            self.processor: Any = _processor_of(config)
        except Exception as error:
            raise UserError(
                f"transformers {transformers.__version__} builds no processor from '{config.model}' "
                f"({type(error).__name__}: {str(error).strip()[:300]}); complete the checkpoint, or start with "
                "--language-model-only."
            ) from error
        found = getattr(self.processor, "image_token", None)
        if IMAGE in config.places and found != config.placeholder:
            raise UserError(
                f"The processor of '{config.model}' marks pictures by {found!r}; a model of type '{config.model_type}' is "
                f"expected to mark them by {config.placeholder!r}. Start with --language-model-only."
            )
        if VIDEO in config.others and isinstance(self.processor.video_processor, NoVideo):
            raise UserError(
                f"transformers {transformers.__version__} builds no video processor from '{config.model}'; start with "
                "--limit-mm-per-prompt video=0."
            )
        self._options = dict(config.processor_kwargs)
        self.identity = fingerprint(Path(config.model), transformers.__version__, self._options, config.projector)

    def run(self, item: Item) -> Features:
        """Return the text that replaces a picture's placeholder, and its features. Raises RequestError."""
        processor = self.processor
        picture, company = item.content, item.company
        given, text = ([picture, picture], processor.image_token * 2) if company else (picture, processor.image_token)
        tokens = processor.tokenizer.init_kwargs
        try:
            merged = processor._merge_kwargs(tokenizer_init_kwargs=tokens, **{**self._options, **item.options})
            nested = processor.prepare_inputs_layout(images=given, text=text)[0]
            marks = {name: merged[name] for name in MARKS if name in merged}
            kwargs = {**merged["images_kwargs"], **marks, "return_tensors": "np"}
            made, texts = processor._process_images([given] if company else nested, **kwargs)
        except (ValueError, TypeError) as error:
            raise RequestError(f"the model's processor refuses the picture: {error}") from error
        except Exception as error:
            if not item.options:
                raise
            # Arguments of a request reach code that does not check them.
            raise RequestError(
                f"the model's processor fails with mm_processor_kwargs ({type(error).__name__}: {error})"
            ) from error
        unused = set(processor.unused_input_names)
        arrays = {name: np.asarray(value) for name, value in made.items() if name not in unused}
        if company:
            arrays |= {name: arrays[name][:1] for name in OF_A_PICTURE}
        return Features(texts[0], arrays)


def _processor_of(config: MediaConfig) -> Any:
    """Build the processor from the checkpoint's files, or from those that a projector file's keys amount to."""
    import transformers

    build = transformers.AutoProcessor.from_pretrained
    if not config.projector:
        return build(config.model, local_files_only=True, backend="pil")
    with processor_files(config.projector["processor"], config.projector["tokens"]) as folder:
        return build(folder, local_files_only=True, backend="pil")


class NoVideo(dict[str, Any]):
    """Stands for the video processor of a family whose videos are not served, where torchvision is missing."""

    model_input_names: tuple[str, ...] = ()

    @classmethod
    def from_pretrained(cls, model: str, **kwargs: Any) -> Any:
        """Return the checkpoint's own where videos of its family are served."""
        kwargs.pop("backend", None)  # of pictures
        kind = video_class(model)
        return cls() if kind is None else kind.from_pretrained(model, **kwargs)


def without_video() -> None:
    """Let processors be built whose video part needs packages that are missing; videos are refused before they reach one."""
    import transformers
    from transformers import processing_utils
    from transformers.models.smolvlm import processing_smolvlm
    from transformers.utils import is_torchvision_available

    if not processing_smolvlm.num2words:  # spells numbers of frames
        processing_smolvlm.num2words = str
    if is_torchvision_available():
        return
    names = processing_utils._LazyAutoProcessorMapping._MAPPING_NAMES
    names["video_processor"] = (__name__, NoVideo.__name__)
    check = processing_utils.ProcessorMixin.check_argument_for_proper_class

    def checked(self: Any, name: str, argument: Any) -> Any:
        return type(argument) if name == "video_processor" else check(self, name, argument)

    processing_utils.ProcessorMixin.check_argument_for_proper_class = checked
    # Pixtral's processor takes one function from the module of torchvision's backend, which the other backend has as well.
    from transformers.models import pixtral
    from transformers.models.pixtral import image_processing_pil_pixtral as backend

    sys.modules["transformers.models.pixtral.image_processing_pixtral"] = backend
    pixtral.PixtralProcessor = transformers.PixtralProcessor = importlib.import_module(
        "transformers.models.pixtral.processing_pixtral"
    ).PixtralProcessor
