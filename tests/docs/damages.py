"""What happens to checkpoints between a hub and a server: each function damages a copy in its folder.

Owns: the damages of the page of errors. Called by: its test.
"""

import json
from pathlib import Path
from typing import Any


def _change(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def no_configuration(folder: Path) -> None:
    """A download that broke off."""
    (folder / "config.json").unlink()


def cut_configuration(folder: Path) -> None:
    """A file whose end is missing."""
    path = folder / "config.json"
    path.write_text(path.read_text()[:-20])


def unknown_architecture(folder: Path) -> None:
    """A name that nobody has."""
    _change(folder, model_type="lama", architectures=["LamaForCausalLM"])


def more_layers(folder: Path) -> None:
    """The configuration of a deeper model."""
    _change(folder, num_hidden_layers=5)


def other_sizes(folder: Path) -> None:
    """The configuration of a wider model."""
    _change(folder, intermediate_size=64)


def cut_weights(folder: Path) -> None:
    """A file of weights that lost its second half."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def no_tokenizer(folder: Path) -> None:
    """Weights alone."""
    for path in folder.glob("tokenizer*"):
        path.unlink()
