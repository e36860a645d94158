"""Rules about media in prompts.

Owns: those rules and their order. Called by: the table (`core_config.rules`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from core.args.schema import flag_of, schema
from core_config.locating.projectors import AUTO, NONE
from core_config.media import modalities_of, transcribes, why_not
from core_config.rules.rule import Facts, Findings, Problem, Rule, Warn, is_count
from core_media.config import MODALITIES, NOUNS, VIDEO
from core_media.families import AROUND_ROWS, PRUNED
from core_media.processing.shared_cache import is_possible
from core_media.sound.config import alignment_heads


def limits_are_counts(facts: Facts) -> Findings:
    """Each modality of --limit-mm-per-prompt is known, and its limit is a count."""
    for name, value in facts["limit_mm_per_prompt"].items():
        count = value.get("count", 1) if isinstance(value, dict) else value
        if name not in MODALITIES:
            yield Problem(f"--limit-mm-per-prompt {name}: expected one of {', '.join(MODALITIES)}.")
        elif not is_count(count, least=0):
            yield Problem(f"--limit-mm-per-prompt {name}: {value!r} is no count; expected a number from 0 on.")
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


def files_are_read_as_said(facts: Facts) -> Findings:
    """--media-io-kwargs chooses frames of videos, and nothing else."""
    for name, value in (facts["media_io_kwargs"] or {}).items():
        if name != "video" or not isinstance(value, dict) or len(value) != 1 or set(value) - {"num_frames", "fps"}:
            yield Problem(
                f'--media-io-kwargs {name}: {value!r}; expected {{"video": {{"num_frames": 32}}}}, or "fps" in its place.'
            )
            continue
        [(key, number)] = value.items()
        if not (is_count(number, least=2) if key == "num_frames" else isinstance(number, int | float) and number > 0):
            yield Problem(f"--media-io-kwargs video.{key}: {number!r}; expected num_frames from 2 on, or fps above 0.")


def words_have_times_in_transcriptions(facts: Facts) -> Findings:
    """--enable-word-times is for checkpoints that say which heads follow the sound."""
    if facts.manifest is None or not facts["enable_word_times"]:
        return
    if not transcribes(facts.manifest):
        yield Warn("--enable-word-times: no effect, since the model writes no transcripts.")
    elif not alignment_heads(str(facts["model"])):
        yield Warn("--enable-word-times: no effect, since generation_config.json has no alignment_heads.")


def videos_are_pruned_by_a_share(facts: Facts) -> Findings:
    """--video-pruning-rate leaves rows over, and the method alone prunes none."""
    rate = facts["video_pruning_rate"]
    if rate is not None and not rate < 1:
        yield Problem(f"--video-pruning-rate {rate}: expected a share from 0 to below 1.")
    if not rate and facts.given("video_pruning_method"):
        yield Warn("--video-pruning-method: no effect without --video-pruning-rate.")


def pruned_rows_are_counted_first(facts: Facts) -> Findings:
    """Where each row of a pruned video stands is known before a tower has computed it."""
    if facts.manifest is None or not facts["video_pruning_rate"]:
        return
    kind = str(facts.manifest.config.get("model_type"))
    if VIDEO in modalities_of(facts.manifest.config) and kind not in PRUNED:
        yield Problem(
            f"--video-pruning-rate: models of type '{kind}' read the time of each frame as text between its rows, so how many "
            "rows a frame keeps would have to be known before the tower has computed them; leave the argument out."
        )


def processed_media_are_shared(facts: Facts) -> Findings:
    """--mm-processor-cache-type shm is for several API processes, on a system with such memory."""
    if facts["mm_processor_cache_type"] != "shm":
        if facts.given("mm_shm_cache_max_object_size_mb"):
            yield Warn("--mm-shm-cache-max-object-size-mb: no effect without --mm-processor-cache-type shm.")
        return
    if not is_possible():
        yield Problem("--mm-processor-cache-type shm: needs Linux; leave it out, and each API process keeps its own.")
    elif facts["api_server_count"] <= 1:
        yield Warn("--mm-processor-cache-type shm: no effect with one API process (--api-server-count).")
    elif not facts["mm_processor_cache_gb"]:
        yield Warn("--mm-processor-cache-type shm: no effect with --mm-processor-cache-gb 0.")


def settings_need_media(facts: Facts) -> Findings:
    """Arguments about media have an effect on models whose media are served."""
    names = [name for name, field in schema().fields.items() if field.group == "media" and facts.given(name)]
    names = [name for name in names if name not in ("skip_mm_profiling", "disable_chunked_mm_input")]
    if facts["mmproj"] in (AUTO, NONE):
        names = [name for name in names if name != "mmproj"]  # both say what to do without a projector as well
    if facts.manifest is None or not names:
        return
    reason = why_not(facts.settings, str(facts["model"]), facts.manifest)
    others = [name for name in names if name not in ("language_model_only", "limit_mm_per_prompt")]
    if reason and others:
        yield Warn(f"{', '.join(map(flag_of, others))}: no effect, since {reason}.")


OF_PROMPTS = (
    "limit_mm_per_prompt", "language_model_only", "allowed_media_domains", "allowed_local_media_path", "enable_mm_embeds",
)  # fmt: skip
OF_MODALITIES = {
    "max_image_pixels": ("image", "video"), "mm_processor_kwargs": ("image",), "max_audio_seconds": ("audio",),
    "max_video_frames": ("video",), "media_io_kwargs": ("video",),
    "video_pruning_rate": ("video",), "video_pruning_method": ("video",),
}  # fmt: skip
"""Argument → modalities that it concerns."""


def _without_use(taken: Sequence[str], *, hears: bool) -> list[str]:
    """Return the arguments that concern other modalities than those that a model takes. hears: whether it transcribes."""
    names = [name for name, needs in OF_MODALITIES.items() if set(needs).isdisjoint(taken)]
    return [*names, *OF_PROMPTS] if hears else names


def settings_fit_the_medium(facts: Facts) -> Findings:
    """Arguments concern modalities that the model takes."""
    if facts.manifest is None:
        return
    hears = transcribes(facts.manifest)
    taken = ["audio"] if hears else list(modalities_of(facts.manifest.config))
    idle = [name for name in _without_use(taken, hears=hears) if facts.given(name)]
    if not hears and why_not(facts.settings, str(facts["model"]), facts.manifest):
        return
    nouns = " and ".join(f"{NOUNS[name]}s" for name in taken)
    if idle:
        yield Warn(f"{', '.join(map(flag_of, idle))}: no effect, since the model takes {nouns} alone.")
    for name in facts["limit_mm_per_prompt"]:
        if not hears and name in MODALITIES and name not in taken:
            yield Warn(f"--limit-mm-per-prompt {name}: no effect, since the model takes {nouns} alone.")


def given_rows_have_a_form(facts: Facts) -> Findings:
    """--enable-mm-embeds is for models of which an item's rows follow each other."""
    if facts.manifest is None or not facts["enable_mm_embeds"]:
        return
    kind = str(facts.manifest.config.get("model_type"))
    if modalities_of(facts.manifest.config) and kind not in AROUND_ROWS:
        yield Warn(
            f"--enable-mm-embeds: no effect, since the processor of models of type '{kind}' writes text between the rows of "
            "an item."
        )


RULES: tuple[Rule, ...] = (
    Rule(limits_are_counts),
    Rule(nothing_is_profiled),
    Rule(files_are_read_as_said),
    Rule(local_media_lie_in_a_directory),
    Rule(processed_media_are_shared),
    Rule(videos_are_pruned_by_a_share),
    Rule(pruned_rows_are_counted_first, "model"),
    Rule(words_have_times_in_transcriptions, "model"),
    Rule(settings_need_media, "model"),
    Rule(settings_fit_the_medium, "model"),
    Rule(given_rows_have_a_form, "model"),
)
