"""The coding agents that are tried: how each is started, and what the scripted model tells it to do.

One task for all: a file has a wrong word; read it, correct it, run a command, say that it is done.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

NOTE = "note.txt"
WRONG = "helo wrold-41\n"
RIGHT = "hello wrold-41\n"
SHOWN = "HELLO WROLD-41"
COMMAND = f"tr a-z A-Z < {NOTE} > shown.txt; cat shown.txt"
TASK = f"TASK-ONE: {NOTE} has a typo, correct it."
DONE = "The note is right now."
NOWHERE = "http://127.0.0.1:9"
"""A proxy that does not answer, for agents that would otherwise try to reach their makers."""


@dataclass(frozen=True, slots=True)
class Agent:
    """One agent.

    program: from npm (see package.json here). words: its arguments; {url}, {task} and {folder} are filled in.
    environment: further variables, filled in likewise.
    files: configuration that it needs, by path in its home; filled in likewise.
    kind: of the bodies that it sends.
    calls: (tool, arguments) for reading, editing and running; filled in likewise.
    edited: a part of its tool's answer after editing.
    """

    program: str
    words: tuple[str, ...]
    kind: str
    calls: tuple[tuple[str, Mapping[str, Any]], ...]
    edited: str
    environment: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    files: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))

    def script(self, folder: Path) -> list[tuple[str, str]]:
        """The rows of the scripted model."""
        read, edit, run = (_call(name, arguments, folder) for name, arguments in self.calls)
        return [
            ("TASK-ONE", f"I will read the note.\n{read}"),
            (WRONG.strip(), f"There is the typo.\n{edit}"),
            (self.edited, run),
            (SHOWN, DONE),
        ]


def filled(text: str, **values: str) -> str:
    """`text` with {name} replaced for each of the values, and nothing else."""
    for name, value in values.items():
        text = text.replace("{" + name + "}", value)
    return text


def _call(name: str, arguments: Mapping[str, Any], folder: Path) -> str:
    body = filled(json.dumps({"name": name, "arguments": arguments}), folder=str(folder))
    return f"<tool_call>\n{body}\n</tool_call>"


AGENTS: Mapping[str, Agent] = MappingProxyType(
    {
        "claude-code": Agent(
            program="claude",
            words=("--print", "{task}", "--allowedTools", "Read,Edit,Bash"),
            kind="messages",
            calls=(
                ("Read", {"file_path": "{folder}/note.txt"}),
                ("Edit", {"file_path": "{folder}/note.txt", "old_string": "helo", "new_string": "hello"}),
                ("Bash", {"command": COMMAND, "description": "Show the note"}),
            ),
            edited=f"{NOTE} has been updated",
            environment={
                "ANTHROPIC_BASE_URL": "{url}",
                "ANTHROPIC_API_KEY": "none",
                "ANTHROPIC_MODEL": "fake-model",
                "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
                "HTTPS_PROXY": NOWHERE,
                "NO_PROXY": "127.0.0.1",
            },
        ),
        "qwen-code": Agent(
            program="qwen",
            words=("--prompt", "{task}", "--approval-mode", "yolo"),
            kind="chat",
            calls=(
                ("read_file", {"file_path": "{folder}/note.txt"}),
                ("edit", {"file_path": "{folder}/note.txt", "old_string": "helo", "new_string": "hello"}),
                ("run_shell_command", {"command": COMMAND, "description": "Show the note", "is_background": False}),
            ),
            edited=f"{NOTE} has been updated",
            environment={"OPENAI_BASE_URL": "{url}/v1", "OPENAI_API_KEY": "none", "OPENAI_MODEL": "fake-model"},
        ),
        "codex": Agent(
            program="codex",
            words=("exec", "--skip-git-repo-check", "--sandbox", "danger-full-access", "{task}"),
            kind="response",
            calls=(
                ("exec_command", {"cmd": f"cat {NOTE}"}),
                ("exec_command", {"cmd": f"sed -i s/helo/hello/ {NOTE}; echo CORRECTED"}),
                ("exec_command", {"cmd": COMMAND}),
            ),
            edited="CORRECTED",
            files={
                ".codex/config.toml": 'model = "fake-model"\nmodel_provider = "core"\nweb_search = "disabled"\n'
                '[model_providers.core]\nname = "core"\nbase_url = "{url}/v1"\nwire_api = "responses"\n'
            },
        ),
        "opencode": Agent(
            program="opencode",
            words=("run", "--model", "core/fake-model", "{task}"),
            kind="chat",
            calls=(
                ("read", {"filePath": "{folder}/note.txt"}),
                ("edit", {"filePath": "{folder}/note.txt", "oldString": "helo", "newString": "hello"}),
                ("bash", {"command": COMMAND, "description": "Show the note"}),
            ),
            edited="Edit applied",
            environment={"HTTPS_PROXY": NOWHERE},
            files={
                ".config/opencode/opencode.json": json.dumps(
                    {
                        "provider": {
                            "core": {
                                "npm": "@ai-sdk/openai-compatible",
                                "options": {"baseURL": "{url}/v1", "apiKey": "none"},
                                "models": {"fake-model": {"tool_call": True}},
                            }
                        },
                        "permission": {"edit": "allow", "bash": "allow"},
                    }
                )
            },
        ),
    }
)
