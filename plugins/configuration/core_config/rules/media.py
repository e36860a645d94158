"""Rules about media in prompts.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from pathlib import Path

from core.args.schema import flag_of, schema
from core_config.media import MODALITIES, transcribes, why_not
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn, is_count


def limits_are_counts(facts: Facts) -> Findings:
    """Each modality of --limit-mm-per-prompt is known, and its limit is a count."""
    for name, value in facts["limit_mm_per_prompt"].items():
        count = value.get("count", 1) if isinstance(value, dict) else value
        if name not in MODALITIES:
            yield Problem(f"--limit-mm-per-prompt {name}: expected one of {', '.join(MODALITIES)}.")
        elif not is_count(count, least=0):
            yield Problem(f"--limit-mm-per-prompt {name}: {value!r} is no count; expected a number from 0 on.")
        elif count and name != "image":
            yield Warn(f"--limit-mm-per-prompt {name}: no effect; pictures alone are served.")
        if isinstance(value, dict) and set(value) - {"count"}:
            yield Warn(f"--limit-mm-per-prompt {name}: sizes have no effect; --max-image-pixels limits pictures.")


def nothing_is_profiled(facts: Facts) -> Findings:
    """Memory is planned from shapes, and chunks may end inside a picture."""
    for name in ("skip_mm_profiling", "disable_chunked_mm_input"):
        if facts[name]:
            yield Warn(f"{flag_of(name)}: no effect here; `core serve --help=media` says why.")


def local_media_lie_in_a_directory(facts: Facts) -> Findings:
    """Files of requests lie below a directory that exists."""
    path = facts["allowed_local_media_path"]
    if path and not Path(path).expanduser().is_dir():
        yield Problem(f"--allowed-local-media-path {path}: there is no such directory.")


def settings_need_media(facts: Facts) -> Findings:
    """Arguments about media have an effect on models whose media are served."""
    names = [name for name, field in schema().fields.items() if field.group == "media" and facts.given(name)]
    names = [name for name in names if name not in ("skip_mm_profiling", "disable_chunked_mm_input")]
    if facts.manifest is None or not names:
        return
    reason = why_not(facts.settings, str(facts["model"]), facts.manifest)
    others = [name for name in names if name not in ("language_model_only", "limit_mm_per_prompt")]
    if reason and others:
        yield Warn(f"{', '.join(map(flag_of, others))}: no effect, since {reason}.")


OF_PICTURES = (
    "limit_mm_per_prompt", "language_model_only", "max_image_pixels", "mm_processor_kwargs", "allowed_media_domains",
    "allowed_local_media_path",
)  # fmt: skip
OF_SOUNDS = ("max_audio_seconds",)


def settings_fit_the_medium(facts: Facts) -> Findings:
    """A model that transcribes takes no pictures, and others no sounds."""
    if facts.manifest is None:
        return
    hears = transcribes(facts.manifest)
    idle = [name for name in (OF_PICTURES if hears else OF_SOUNDS) if facts.given(name)]
    if idle and (hears or not why_not(facts.settings, str(facts["model"]), facts.manifest)):
        yield Warn(
            f"{', '.join(map(flag_of, idle))}: no effect, since the model takes {'sounds' if hears else 'pictures'} alone."
        )


RULES: tuple[Rule, ...] = (
    Rule(limits_are_counts),
    Rule(nothing_is_profiled),
    Rule(local_media_lie_in_a_directory),
    Rule(settings_need_media, "model"),
    Rule(settings_fit_the_medium, "model"),
)
