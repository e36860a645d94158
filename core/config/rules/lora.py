"""Rules about LoRA. Owns: those rules and their rows. Called by: the table (`core.config.rules`)."""

from __future__ import annotations

from core.config.rules.rule import Derive, Facts, Findings, Problem, Rule, Warn, flag

SETTINGS = (
    "lora_modules",
    "max_loras",
    "max_lora_rank",
    "max_cpu_loras",
    "lora_dtype",
    "lora_target_modules",
    "fully_sharded_loras",
    "specialize_active_lora",
    "enable_tower_connector_lora",
    "default_mm_loras",
)
MODALITIES = ("vision_config", "audio_config", "image_config", "video_config")


def r32_unused(facts: Facts) -> Findings:
    """Settings of what is off."""
    unused = [name for name in SETTINGS if facts.given(name)]
    if unused and not facts["enable_lora"]:
        yield Warn(f"{', '.join(map(flag, unused))}: no effect without --enable-lora.")


def r36_most_on_the_host(facts: Facts) -> Findings:
    """The host keeps at least those that are active; 0 counts as unset."""
    host, active = facts["max_cpu_loras"], facts["max_loras"]
    if host is not None and 0 < host < active:
        yield Problem(f"--max-cpu-loras {host}: less than --max-loras {active}; raise it or leave it out.")


def n29_negative(facts: Facts) -> Findings:
    """A number of adapters is no negative number."""
    host = facts["max_cpu_loras"]
    if host is not None and host < 0:
        yield Problem(f"--max-cpu-loras {host}: expected at least --max-loras, or leave it out.")


def r36_default(facts: Facts) -> Findings:
    """As many as are active."""
    if facts["max_cpu_loras"] is None or facts["max_cpu_loras"] == 0:
        yield Derive("max_cpu_loras", facts["max_loras"], "as max_loras", force=True)


def n27_text_model(facts: Facts) -> Findings:
    """Adapters for kinds of media that the model does not know."""
    given = facts["default_mm_loras"]
    if given and facts.manifest is not None and not any(name in facts.manifest.config for name in MODALITIES):
        yield Problem(f"--default-mm-loras {', '.join(given)}: the model takes text only; leave it out.")


HOST = ("max_cpu_loras", "max_loras")
RULES: tuple[Rule, ...] = (
    Rule("R32", ("enable_lora",), "warning", r32_unused),
    Rule("N29", HOST, "error", n29_negative),
    Rule("R36", HOST, "error", r36_most_on_the_host),
    Rule("R36", HOST, "derived", r36_default),
    Rule("N29", HOST, "derived", instead="R36, for which 0 counts as unset"),
    Rule("N27", ("default_mm_loras",), "error", n27_text_model, "model"),
)
