import pytest

from core.api.errors import UserError
from core_formats.row_files import format_named, own_rows

TOOL_NAMES = [
    "deepseek_v3", "deepseek_v31", "deepseek_v32", "ernie45", "functiongemma", "gigachat3", "glm4_moe", "glm47_moe",
    "granite", "granite-20b-fc", "hermes", "hunyuan_a13b", "internlm", "jamba", "kimi_k2", "llama3_json",
    "llama4_json", "llama4_pythonic", "longcat", "minimax", "minimax_m2", "mistral", "olmo3", "openai",
    "phi4_mini_json", "pythonic", "qwen3_coder", "qwen3_xml", "seed_oss", "step3", "xlam", "deepseek_v4", "glm45",
    "glm47", "gemma4", "granite4", "qwen3_5", "dots", "hy_v3", "lfm2", "apertus", "mimo", "cohere_command3",
    "step3p5", "deepseek_v41", "qwen3_json", "nemotron_v3",
]  # fmt: skip
REASONING_NAMES = [
    "deepseek_r1", "deepseek_v3", "ernie45", "glm4_moe", "openai_gptoss", "GptOss", "granite", "holo2",
    "hunyuan_a13b", "identity", "minimax_m2", "mistral", "olmo3", "qwen3", "seed_oss", "step3", "kimi_k2", "glm45",
    "gemma4", "deepseek_v4", "nemotron_v3", "mimo", "cohere_command3",
]  # fmt: skip


@pytest.mark.parametrize("name", TOOL_NAMES)
def test_names_of_tool_parsers_are_rows(name):
    assert format_named(name, "tools").calls


@pytest.mark.parametrize("name", REASONING_NAMES)
def test_names_of_reasoning_parsers_are_rows(name):
    row = format_named(name, "reasoning")
    assert (row.reasoning is None) == (name == "identity")


def test_an_unknown_name_is_refused_with_the_nearest():
    with pytest.raises(UserError, match=r"--tool-call-parser hermez: .* Did you mean 'hermes'"):
        format_named("hermez", "tools")


def test_no_two_rows_share_a_name():
    for names in ([row.name for row in own_rows()], [n for row in own_rows() for n in row.tool_names]):
        assert len(names) == len(set(names))
    reasoning = [name for row in own_rows() for name in row.reasoning_names]
    assert len(reasoning) == len(set(reasoning))
