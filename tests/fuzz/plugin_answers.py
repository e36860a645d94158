"""What plugins of the kinds `io_processor` and `tokenizer` answer, damaged: the request, or the start, ends with a sentence.

Owns: plugins that answer what a folder holds. Never does: damage anything. Called by: the table of targets.

Of an IO processor, `body` is the request, whose client is told that it is wrong; all other mistakes are the plugin's.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from core.api.config import ResolvedPlugin
from core.plugin.manifest import sha256_of
from core_frontend.io.contract import Output, Prompts
from core_frontend.io.process import Answer, Job, OutputMessage, Steps, _answer
from core_tokens.plugged import Plug, PluggedBackend

OF_IO = ("body", "parsed", "prompts", "params", "answer")
OF_TOKENIZERS = ("tokenizer.json",)
PLUGIN = '''"""A tokenizer whose answers lie beside it."""

import json
from pathlib import Path

from core.plugin.hookspecs import PluginSpec, hookimpl

CONTRACT = 1
KIND = "tokenizer"


class Told:
    def __init__(self, told):
        self.told = told
        for name in ("vocab_size", "identity", "chat_template", "named", "control", "ends", "strips_space"):
            setattr(self, name, told[name])
        if told.get("spans") is not None:
            self.spans = lambda text: told["spans"]

    def encode(self, text):
        return self.told["ids"]

    def token_bytes(self, index):
        found = self.told["bytes"][index]
        return found.encode() if isinstance(found, str) else found


@hookimpl
def core_spec():
    return PluginSpec(name="told", summary="what a file says")


@hookimpl
def core_load(context):
    return Told(json.loads((Path(context.options["directory"]) / "tokenizer.json").read_text()))
'''
TOLD = {
    "vocab_size": 5, "identity": "told", "chat_template": None, "named": {"bos_token": 1}, "control": {"<|end|>": 4},
    "ends": [[1], [2], [2, 2], 1], "strips_space": False, "bytes": ["hello", "a", "b", " h", ""], "ids": [0],
    "spans": None,
}  # fmt: skip


class Told:
    """An IO processor that answers what it is given."""

    def __init__(self, parsed: Any, prompts: Any, answer: Any) -> None:
        self._parsed, self._prompts, self._answer = parsed, prompts, answer

    def parse_request(self, data: Any) -> Any:
        return self._parsed

    def pre_process(self, data: Any) -> Prompts:
        return self._prompts

    def post_process(self, data: Any, outputs: Sequence[Output]) -> Any:
        return self._answer


def make_io(folder: Path) -> None:
    """Write a request and the answers to it, and look that they pass. Raises AssertionError."""
    values = {
        "body": {"model": "m", "data": {"question": "Who?", "of": [1, 2.5, None]}},
        "parsed": {"question": "Who?"},
        "prompts": ["Who?", [1, 2, 3]],
        "params": {"task": "embed", "dimensions": 4},
        "answer": {"passages": [{"score": 0.5, "text": "Ada"}]},
    }
    for name, value in values.items():
        (folder / name).write_text(json.dumps(value))
    assert read_io(folder) == 3, "good answers do not pass"


def read_io(folder: Path) -> int:
    """Run all steps of a request; returns how many have an outcome. Raises AssertionError for one without a sentence."""
    said = {name: (folder / name).read_bytes() for name in OF_IO}
    told = {}
    for name in OF_IO[1:]:
        try:
            told[name] = json.loads(said[name])
        except (ValueError, RecursionError):
            told[name] = said[name]  # no plain JSON value
    prompts = (told["prompts"], told["params"])
    steps = Steps(Told(told["parsed"], prompts, told["answer"]))
    outputs = [OutputMessage((2,), np.ones(2, np.float32).tobytes(), [1, 2])]
    count = 0
    for job in (Job("body", said["body"]), Job("data", b"{}"), Job("answer", b"{}", outputs)):
        answer, unfit = _answer(steps, "told", job)
        msgspec.msgpack.decode(msgspec.msgpack.encode(answer), type=Answer)
        assert not unfit or (answer.refusal is not None and answer.refusal.details), "the process ends without a reason"
        if answer.refusal is None:
            count += 1
            if answer.content:
                _judge(job.step, msgspec.json.decode(answer.content))
    wrong, _ = _answer(Steps(Told({}, (["a"], {}), {})), "told", Job("body", said["body"]))
    assert wrong.refusal is None or wrong.refusal.status < 500, f"a wrong body is the plugin's: {wrong.refusal}"
    return count


def _judge(step: str, found: Any) -> None:
    """Prompts are at least one, and each a text or ids."""
    if step == "answer":
        return
    assert found["input"] and all(found["input"]), found["input"]
    for prompt in found["input"]:
        assert isinstance(prompt, str) or all(isinstance(token, int) for token in prompt), prompt


def make_tokenizer(folder: Path) -> None:
    """Write a plugin and its answers, and look that they pass. Raises AssertionError."""
    (folder / "told.py").write_text(PLUGIN)
    (folder / "tokenizer.json").write_text(json.dumps(TOLD | {"ids": [0], "bytes": ["hello", "a", "b", " hé", ""]}))
    assert read_tokenizer(folder) > 0, "good answers do not pass"


def read_tokenizer(folder: Path) -> int:
    """Start with a tokenizer plugin and have it take a text; returns the number of tokens. Raises AssertionError for ids
    and spans that are none.
    """
    path = folder / "told.py"
    row = ResolvedPlugin(kind="tokenizer", name="told", target=f"file:{path}", sha256=sha256_of(path))
    backend = PluggedBackend(Plug(row, directory=str(folder)))
    backend.to_str()
    backend.get_vocab()
    encoding = backend.encode("hello<|end|>")
    assert all(0 <= index < backend.get_vocab_size() for index in encoding.ids), encoding.ids
    assert all(0 <= first <= end <= len("hello<|end|>") for first, end in encoding.offsets), encoding.offsets
    return len(encoding.ids)
