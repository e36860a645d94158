"""`python -m tests.media.classes`: every class of transformers that writes text about pictures or sounds, tried once.

Owns: the list, from transformers' own mappings, and `classes.json`: why a class is refused, empty for one whose text is served.
Never does: load weights; the configuration is that of the class without arguments. Called by: people, the tests,
`tests.families.document`.
"""

import json
import tempfile
from pathlib import Path

from transformers import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
    MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
)

from core.api.errors import ConfigError
from core_commands.cli.model_report import model_report

RESULTS = Path(__file__).with_name("classes.json")


def classes() -> dict[str, str]:
    """Model type → name of the class."""
    found = {**MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES, **MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES}
    return {kind: name if isinstance(name, str) else name[0] for kind, name in sorted(found.items())}


def tried(kind: str) -> str:
    """Why a checkpoint with this class's own configuration is refused; empty for one whose text is served."""
    values = CONFIG_MAPPING[kind]().to_dict() | {"model_type": kind, "architectures": [classes()[kind]]}
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "config.json").write_text(json.dumps(values, default=str))
        try:
            problems = model_report({"model": directory, "load_format": "dummy"}).refused
        except ConfigError as error:
            problems = error.problems
    return " ".join(problems).partition("; of ")[0]


def known() -> dict[str, str]:
    """What was found when the classes were last tried."""
    found: dict[str, str] = json.loads(RESULTS.read_text())
    return found


if __name__ == "__main__":
    results = {kind: tried(kind) for kind in classes()}
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
