"""Rules about images, audio and video. Owns: those rules and their rows. Called by: the table (`core.config.rules`)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from core.config.memory import human_bytes
from core.config.rules.memory import media_bytes
from core.config.rules.rule import Derive, Facts, Finding, Findings, Problem, Rule, Warn, is_count

LIMIT = "limit_mm_per_prompt"
MODALITIES = ("image", "audio", "video")


def r55_old_text(facts: Facts) -> Findings:
    """`image=16,audio=2` is the old spelling of a mapping."""
    text = facts[LIMIT]
    if not isinstance(text, str):
        return
    found: dict[str, int] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, _, number = part.partition("=")
        if not number.strip().isdigit():
            yield Problem(f"--limit-mm-per-prompt {part}: expected KIND=NUMBER with a number from 0.")
        elif name in found:
            yield Problem(f"--limit-mm-per-prompt {text}: '{name}' is given twice; give it once.")
        else:
            found[name] = int(number)
    yield Derive(LIMIT, found, f"from '{text}'", canonical=True)
    yield Warn(f"--limit-mm-per-prompt {text} is deprecated; write --limit-mm-per-prompt '{json.dumps(found)}'.")


def r55_negative(facts: Facts) -> Findings:
    """A count is no negative number."""
    for name, limit in limits(facts).items():
        count = limit.get("count", 0) if isinstance(limit, dict) else limit
        if not is_count(count, 0):
            yield Problem(f"--limit-mm-per-prompt.{name} {count!r}: expected an integer from 0.")


def n36_text_only(facts: Facts) -> Findings:
    """The language model alone takes no media."""
    if facts["language_model_only"]:
        yield Derive(LIMIT, dict.fromkeys(MODALITIES, 0), "language_model_only", force=True)


def n37_embeddings(facts: Facts) -> Findings:
    """With embeddings allowed, a limit of 0 is about media and spares the encoder; others count both."""
    if not facts["enable_mm_embeds"]:
        return
    for name, limit in limits(facts).items():
        count = limit.get("count", 0) if isinstance(limit, dict) else limit
        if is_count(count, 0):
            why = "embeddings count as well" if count else "embeddings are still taken, and no encoder is loaded"
            yield Derive(f"{LIMIT}.{name}", count, why)


def limits(facts: Facts) -> dict[str, Any]:
    """The limits by kind, empty while they are text."""
    return facts[LIMIT] if isinstance(facts[LIMIT], dict) else {}


def n38_object_size(facts: Facts) -> Findings:
    """The size of an object in shared memory."""
    if facts.given("mm_shm_cache_max_object_size_mb") and facts["mm_processor_cache_type"] != "shm":
        yield Warn("--mm-shm-cache-max-object-size-mb has no effect without --mm-processor-cache-type shm.")


def n39_caches(facts: Facts) -> Findings:
    """Every API server and every replica has one."""
    total = media_bytes(facts)
    if facts.host_memory and total > facts.host_memory:
        count = facts["api_server_count"] + facts["data_parallel_size"]
        yield Warn(
            f"--mm-processor-cache-gb {facts['mm_processor_cache_gb']:g}: {count} caches take {human_bytes(total)}, and "
            f"this machine has {human_bytes(facts.host_memory)}; lower it."
        )


def n48_pruning(facts: Facts) -> Iterator[Finding]:
    """Some of a video has to stay."""
    rate = facts["video_pruning_rate"]
    if rate is not None and not 0 <= rate < 1:
        yield Problem(f"--video-pruning-rate {rate:g}: expected a number from 0 and below 1.")


RULES: tuple[Rule, ...] = (
    Rule("R55", (LIMIT,), "derived", r55_old_text),
    Rule("R55", (LIMIT,), "error", r55_negative),
    Rule("N36", ("language_model_only", LIMIT), "derived", n36_text_only),
    Rule("N37", ("enable_mm_embeds", LIMIT), "derived", n37_embeddings),
    Rule("N38", ("mm_shm_cache_max_object_size_mb", "mm_processor_cache_type"), "warning", n38_object_size),
    Rule("N39", ("mm_processor_cache_gb", "api_server_count", "data_parallel_size"), "warning", n39_caches, "platform"),
    Rule("N48", ("video_pruning_rate",), "error", n48_pruning),
)
