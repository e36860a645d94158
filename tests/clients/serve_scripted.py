"""`core serve` with a scripted model: `serve_scripted.py PORT SCRIPT [FOLDER]`.

SCRIPT: a JSON file, rows of [part of the prompt, answer]; the last row whose part is in the prompt is the answer, so that a
        conversation goes on as its rows do. Answers are what a model would write: text, `<think>`, `<tool_call>`.
FOLDER: gets each body as `NUMBER-KIND.json`, and the prompt made of it as `NUMBER-KIND.txt`.

Everything but the model is real: the process, HTTP, preparation with its helper process, streams.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from core.commands.main import main
from core_apis.prepare.preparer import Preparer
from core_commands.cli import serve as command
from core_config.served.server_config import ServerConfig
from core_frontend.async_engine import AsyncEngine
from core_supervision.child import EngineProcess
from tests.apis.fake_engine import make_engine, make_tokenizer
from tests.apis.scripted_engine import ConversingClient

MAX_MODEL_LEN = 1_000_000
"""Tokens; one is a byte."""

TEMPLATE = """{%- if tools %}{{ '<|im_start|>system\\n# Tools\\n\\n<tools>' }}
{%- for tool in tools %}{{ '\\n' }}{{ tool | tojson }}{% endfor %}
{{- '\\n</tools>\\nCall one as <tool_call>\\n{"name": <name>, "arguments": <object>}\\n</tool_call><|im_end|>\\n' }}{% endif %}
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' }}
{%- if message.reasoning_content %}{{ '<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' }}{% endif %}
{{- message.content }}
{%- for call in message.tool_calls or [] %}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' }}
{{- call.function.arguments if call.function.arguments is string else call.function.arguments | tojson }}
{{- '}\\n</tool_call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""


Script = Sequence[tuple[str, str]]


def engine_of(script: Script) -> AsyncEngine:
    client = functools.partial(ConversingClient, rows=script)
    return make_engine(client=client, tokenizer=make_tokenizer(TEMPLATE), max_model_len=MAX_MODEL_LEN)


def record(folder: Path) -> None:
    """Keep what is prepared from now on."""
    prepare = Preparer.prepare
    numbers = itertools.count(1)

    async def kept(self: Preparer, kind: str, data: Any) -> Any:
        name = f"{next(numbers):03d}-{kind}"
        (folder / f"{name}.json").write_bytes(bytes(data))
        prepared = await prepare(self, kind, data)
        chat = getattr(prepared, "chat", prepared)
        for prompt in getattr(chat, "prompts", ()):
            (folder / f"{name}.txt").write_text(prompt.text or "")
        return prepared

    Preparer.prepare = kept  # type: ignore[method-assign]


def serve(port: int, script: Script) -> int:
    async def start(resolution: object, process: object) -> AsyncEngine:
        return engine_of(script)

    async def resolved() -> object:
        engine = engine_of(script)
        return engine.config

    def resolve(words: list[str]) -> object:
        server = ServerConfig(port=port, uvicorn_log_level="warning")
        return SimpleNamespace(engine=asyncio.run(resolved()), server=server)

    AsyncEngine.start = staticmethod(start)  # type: ignore[method-assign,assignment]
    EngineProcess.spawn = lambda: SimpleNamespace(discard=lambda: None, configured=asyncio.Event())  # type: ignore[method-assign,assignment,return-value]
    command.resolve_words = resolve  # type: ignore[assignment]
    return main(["serve"])


if __name__ == "__main__":
    rows = json.loads(Path(sys.argv[2]).read_text())
    if len(sys.argv) > 3:
        record(Path(sys.argv[3]))
    sys.exit(serve(int(sys.argv[1]), [tuple(row) for row in rows]))
