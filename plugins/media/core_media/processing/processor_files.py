"""The files of a processor of transformers, for a model whose checkpoint has none.

Owns: `processor_files`. Never does: know a model. Called by: the image processor.

A processor tokenizes no prompt here (`core_tokens` does): of its tokenizer only the special tokens matter, so the one that is
written has no others.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def processor_files(processor: Mapping[str, Any], tokens: Mapping[str, str]) -> Iterator[str]:
    """Yield a directory with the files, which exists until the context ends.

    processor: contents of `processor_config.json`, with those of the image processor. tokens: special tokens by name.
    """
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    spellings = list(dict.fromkeys(["<unk>", *tokens.values()]))
    backend = Tokenizer(models.WordLevel({text: index for index, text in enumerate(spellings)}, unk_token="<unk>"))
    with tempfile.TemporaryDirectory(prefix="core-processor-") as folder:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=backend, unk_token="<unk>", extra_special_tokens=dict(tokens)
        )
        tokenizer.save_pretrained(folder)
        images = {**processor["image_processor"], "processor_class": processor["processor_class"]}
        others = {name: value for name, value in processor.items() if name != "image_processor"}
        (Path(folder) / "preprocessor_config.json").write_text(json.dumps(images), encoding="utf-8")
        (Path(folder) / "processor_config.json").write_text(json.dumps(others), encoding="utf-8")
        yield folder
