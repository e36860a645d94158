"""What became of a script: it ran, it was refused by name, it needs what a machine lacks, or it failed.

Owns: `Verdict`, and the table by which the last line of an error is read. Never does: run a script.
Called by: `tests.compat.examples`.
"""

import re
from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ran", "refused", "needs", "failed"]

OURS = re.compile(
    r"core\.api\.errors\.\w+: |There is no (core[._]|VllmConfig)|core\.\S+ has no |: not served yet|is not served|"
    r"this engine does not serve it yet"
)
"""In the last line of a refusal by name: our own sentences."""

TOPICS: tuple[tuple[str, str], ...] = (
    (r"lora|adapter", "adapters"),
    (r"kv.?transfer|kv_connector|lmcache|nixl|mooncake|ec.?transfer", "KV transfer"),
    (r"multi.?modal|media|image|audio|video|(core|compat)\.assets", "media"),
    (r"parallel|one rank|one node|one engine|ray|torchrun|distributed", "several devices"),
    (r"prompt.?embeds", "prompt embeddings"),
    (r"logits.?processor", "logits processors"),
    (r"sleep|weight_transfer|pause|resume", "sleep and new weights"),
    (r"pooling|classif|reward|embed|score|token_embed", "pooling"),
    (r"routed_experts", "choice of experts in outputs"),
    (r"compil|cudagraph", "compilation"),
    (r"model_executor|(core|compat)\.(config|attention|v1\.worker)|worker_cls|scheduler_cls", "the engine's inside"),
    (r"max_position_embeddings|params\.json|speculative-config|config\.json", "a checkpoint of its own"),
    (r"vllmconfig|(core|compat)\.(platforms|benchmarks)|trace_replay", "the engine's inside"),
    (r"quantization|checkpoint|tokenizer|hf_overrides|architecture|load_format", "a checkpoint of its own"),
)
"""Patterns of an error's last line in lower case, and what the script asks for."""

LACKS: tuple[tuple[str, str], ...] = (
    (r"No module named '(?!core)([\w.]+)'", "another package"),
    (r"cuda|nvidia|gpu device|torch not compiled with", "a GPU"),
    (r"connection|resolve|urlopen|network|offline mode|cannot be reached|couldn't connect", "the network"),
    (r"the following arguments are required|usage:|required: ", "arguments of its own"),
    (r"no such file or directory", "files of its own"),
)
"""The same for what a machine, and not the engine, lacks."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """outcome: see above. topic: what was refused or is lacking; empty else. line: the last line of an error."""

    outcome: Outcome
    topic: str = ""
    line: str = ""


def judge(code: int, errors: str) -> Verdict:
    """The verdict on a process. code: its exit code. errors: all that it wrote to standard error."""
    if code == 0:
        return Verdict("ran")
    line = last_line(errors)
    if OURS.search(line) or OURS.search(errors[-600:]):
        topic = _first(TOPICS, errors_tail(errors).lower())
        return Verdict("refused", topic or "other", line)
    lacking = _first(LACKS, line) or _first(LACKS, line.lower())
    if lacking:
        return Verdict("needs", lacking, line)
    return Verdict("failed", "", line)


def last_line(errors: str) -> str:
    """The sentence of the exception that ended a script."""
    lines = [line for line in errors.splitlines() if line.strip()]
    for line in reversed(lines):
        if not line.startswith((" ", "\t")):
            return line[:400]
    return lines[-1][:400] if lines else ""


def errors_tail(errors: str) -> str:
    """The lines behind the last traceback's frames: several when several problems are told."""
    _, _, tail = errors.rpartition("\n  File ")
    _, _, said = tail.partition("\n")
    return said[-2000:]


def _first(rows: tuple[tuple[str, str], ...], text: str) -> str:
    for pattern, name in rows:
        if re.search(pattern, text):
            return name
    return ""
