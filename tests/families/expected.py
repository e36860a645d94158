"""What is expected of variants that are not like the others. Data alone.

Owns: the tolerance, its exceptions, and what is refused. Called by: the tests of rows, the document.
"""

TOLERANCE = 2e-4
"""Largest absolute difference of a logit."""
TOLERANCES: dict[tuple[str, str], tuple[float, str]] = {
    ("gemma4_text", "ten layers"): (
        5e-4,
        "layers magnify rounding: in pieces, matrices are multiplied in another order",
    ),
    ("qwen3_5_moe_text", "usual"): (
        5e-4,
        "layers magnify rounding: in pieces, matrices are multiplied in another order",
    ),
}
"""Architecture and variant → a tolerance of its own, and why."""
REFUSED: dict[tuple[str, str], str] = {
    ("mimo_v2_flash", "usual"): "5 numbers of a head rotate",
    ("falcon_h1", "biased"): "ssm_in_multiplier is 1.3 and mamba_proj_bias is true",
    ("bloom", "normed stream"): "apply_residual_connection_post_layernorm",
}
"""Architecture and variant that a row does not serve → what its error says."""
UNMENDED: dict[tuple[str, str], str] = {}
"""Architecture and variant that a row serves wrongly → how. The entry goes when the row is right: its test fails then."""
NAMED = (
    "aria",
    "aya_vision",
    "chatglm",
    "cohere2_vision",
    "cohere_compass",
    "gemma3n",
    "phi4mm",
    "qwen2_5_omni_text",
    "qwen2_5_omni_thinker",
    "stablelm_epoch",
    "step3_vl",
    "whisper",
)
"""Names that a row claims beside those that are compared: older names, wholes whose text alone is compared, and Whisper and the
thinker of Qwen2.5-Omni, which `tests/media` compares."""
MORE_TOKENS = (
    ("gemma4_text", "inputs of layers"), ("gemma4_text", "experts"), ("deepseek_v32", "few keys"), ("glm_moe_dsa", "shared"),
    ("axk2", "few keys"),
)  # fmt: skip
"""Variants whose tokens are compared beside those of an architecture's first one: they are computed otherwise."""
QUICK = ("llama", "gemma3_text", "deepseek_v3", "lfm2")
"""Architectures whose tokens are compared in every run of the suite."""
