"""Chat templates in the styles of twenty families, written for tests. Data alone, see `test_styles`.

Each has the family's marks, its place of the system message, and what it does to earlier answers.
"""

from dataclasses import dataclass

LAST_USER = (
    "{%- set ns = namespace(last=-1) -%}{%- for m in messages -%}{%- if m.role == 'user' -%}"
    "{%- set ns.last = loop.index0 -%}{%- endif -%}{%- endfor -%}"
)
SYSTEM_APART = "{%- set system = messages[0].content -%}{%- set loop_messages = messages[1:] -%}"
TOOLS_JSON = "{%- for tool in tools -%}{{- tool | tojson -}}{%- endfor -%}"
DATE = "DATE"


@dataclass(frozen=True)
class Style:
    """A template, and what it does. drops: reasoning before the last user message. trims: white space around answers.

    DATE in the text stands for the day on which it is rendered.
    """

    text: str
    drops: bool = False
    trims: bool = False

    @property
    def has_tools(self) -> bool:
        return "tools" in self.text

    @property
    def has_date(self) -> bool:
        return DATE in self.text


def _loop(each: str, opening: str, messages: str = "messages") -> str:
    return (
        f"{{%- for m in {messages} -%}}{each}{{%- endfor -%}}{{%- if add_generation_prompt -%}}{opening}{{%- endif -%}}"
    )


CHATML = _loop(
    "{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' -}}", "{{- '<|im_start|>assistant\\n' -}}"
)
QWEN3 = (
    "{%- if tools -%}{{- '<|im_start|>system\\n<tools>' -}}" + TOOLS_JSON + "{{- '</tools><|im_end|>\\n' -}}{%- endif -%}"
    + LAST_USER + _loop(
        "{{- '<|im_start|>' + m.role + '\\n' -}}{%- if m.reasoning_content and loop.index0 > ns.last -%}"
        "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' -}}{%- endif -%}{{- m.content + '<|im_end|>\\n' -}}",
        "{{- '<|im_start|>assistant\\n' -}}",
    )
)  # fmt: skip
LLAMA2 = SYSTEM_APART + _loop(
    "{%- if m.role == 'user' -%}{{- '<s>[INST] ' + ('<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' if loop.first else '')"
    " + m.content + ' [/INST]' -}}{%- else -%}{{- ' ' + m.content | trim + ' </s>' -}}{%- endif -%}",
    "",
    "loop_messages",
)
LLAMA3 = _loop(
    "{{- '<|start_header_id|>' + m.role + '<|end_header_id|>\\n\\n' + m.content | trim + '<|eot_id|>' -}}",
    "{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}",
)
LLAMA31 = (
    "{{- '<|start_header_id|>system<|end_header_id|>\\n\\nToday Date: DATE\\n\\n' -}}" + TOOLS_JSON
    + "{{- '<|eot_id|>' -}}" + LLAMA3
)  # fmt: skip
GEMMA = SYSTEM_APART + _loop(
    "{{- '<start_of_turn>' + ('model' if m.role == 'assistant' else m.role) + '\\n' -}}"
    "{%- if loop.first -%}{{- system + '\\n\\n' -}}{%- endif -%}{{- m.content | trim + '<end_of_turn>\\n' -}}",
    "{{- '<start_of_turn>model\\n' -}}",
    "loop_messages",
)
MISTRAL = SYSTEM_APART + _loop(
    "{%- if m.role == 'user' -%}{{- '[INST] ' + (system + '\\n\\n' if loop.first else '') + m.content + '[/INST]' -}}"
    "{%- else -%}{{- ' ' + m.content + '</s>' -}}{%- endif -%}",
    "",
    "loop_messages",
)
MISTRAL_V7 = "{{- '[AVAILABLE_TOOLS]' -}}" + TOOLS_JSON + "{{- '[/AVAILABLE_TOOLS]' -}}" + _loop(
    "{%- if m.role == 'system' -%}{{- '[SYSTEM_PROMPT]' + m.content + '[/SYSTEM_PROMPT]' -}}"
    "{%- elif m.role == 'user' -%}{{- '[INST]' + m.content + '[/INST]' -}}"
    "{%- else -%}{{- m.content + '</s>' -}}{%- endif -%}",
    "",
)  # fmt: skip
PHI3 = _loop("{{- '<|' + m.role + '|>\\n' + m.content + '<|end|>\\n' -}}", "{{- '<|assistant|>\\n' -}}")
PHI4 = _loop(
    "{{- '<|im_start|>' + m.role + '<|im_sep|>' + m.content + '<|im_end|>' -}}",
    "{{- '<|im_start|>assistant<|im_sep|>' -}}",
)
ZEPHYR = _loop("{{- '<|' + m.role + '|>\\n' + m.content + '</s>\\n' -}}", "{{- '<|assistant|>\\n' -}}")
VICUNA = SYSTEM_APART + "{{- system + ' ' -}}" + _loop(
    "{{- 'USER: ' + m.content + ' ' if m.role == 'user' else 'ASSISTANT: ' + m.content + '</s>' -}}",
    "{{- 'ASSISTANT: ' -}}",
    "loop_messages",
)  # fmt: skip
ALPACA = SYSTEM_APART + "{{- system + '\\n\\n' -}}" + _loop(
    "{{- '### ' + ('Instruction' if m.role == 'user' else 'Response') + ':\\n' + m.content | trim + '\\n\\n' -}}",
    "{{- '### Response:\\n' -}}",
    "loop_messages",
)  # fmt: skip
DEEPSEEK_R1 = LAST_USER + "{{- '<｜begin▁of▁sentence｜>' -}}" + _loop(
    "{%- if m.role == 'system' -%}{{- m.content -}}{%- elif m.role == 'user' -%}{{- '<｜User｜>' + m.content -}}"
    "{%- else -%}{{- '<｜Assistant｜>' -}}{%- if m.reasoning_content and loop.index0 > ns.last -%}"
    "{{- '<think>\\n' + m.reasoning_content + '\\n</think>\\n\\n' -}}{%- endif -%}"
    "{{- m.content + '<｜end▁of▁sentence｜>' -}}{%- endif -%}",
    "{{- '<｜Assistant｜>' -}}",
)  # fmt: skip
GRANITE = (
    "{{- '<|start_of_role|>system<|end_of_role|>Today is DATE.' -}}" + TOOLS_JSON + "{{- '<|end_of_text|>\\n' -}}"
    + _loop(
        "{{- '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\\n' -}}",
        "{{- '<|start_of_role|>assistant<|end_of_role|>' -}}",
    )
)  # fmt: skip
COMMAND = _loop(
    "{{- '<|START_OF_TURN_TOKEN|><|' + {'user': 'USER', 'assistant': 'CHATBOT'}.get(m.role, 'SYSTEM') + '_TOKEN|>'"
    " + m.content | trim + '<|END_OF_TURN_TOKEN|>' -}}",
    "{{- '<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>' -}}",
)
GLM4 = LAST_USER + "{{- '[gMASK]<sop>' -}}" + _loop(
    "{{- '<|' + m.role + '|>\\n' -}}{%- if m.reasoning_content and loop.index0 > ns.last -%}"
    "{{- '<think>' + m.reasoning_content + '</think>\\n' -}}{%- endif -%}{{- m.content -}}",
    "{{- '<|assistant|>\\n' -}}",
)  # fmt: skip
HARMONY = LAST_USER + "{{- '<|start|>system<|message|>Current date: DATE<|end|>' -}}" + _loop(
    "{%- if m.reasoning_content and loop.index0 > ns.last -%}"
    "{{- '<|start|>assistant<|channel|>analysis<|message|>' + m.reasoning_content + '<|end|>' -}}{%- endif -%}"
    "{{- '<|start|>' + m.role + ('<|channel|>final' if m.role == 'assistant' else '') -}}"
    "{{- '<|message|>' + m.content + '<|end|>' -}}",
    "",
)  # fmt: skip
FALCON = _loop("{{- m.role | capitalize + ': ' + m.content + '\\n' -}}", "{{- 'Assistant: ' -}}")
OLMO = "{{- '<|endoftext|>' -}}" + _loop(
    "{{- '<|' + m.role + '|>\\n' + m.content + '\\n' -}}", "{{- '<|assistant|>\\n' -}}"
)
JAMBA = "{{- '<|bom|><|system|> ' -}}" + TOOLS_JSON + "{{- '<|eom|>' -}}" + _loop(
    "{{- '<|bom|><|' + m.role + '|> ' + m.content + '<|eom|>' -}}", "{{- '<|bom|><|assistant|> ' -}}"
)  # fmt: skip

STYLES = {
    "chatml": Style(CHATML),
    "qwen3": Style(QWEN3, drops=True),
    "llama 2": Style(LLAMA2, trims=True),
    "llama 3": Style(LLAMA3, trims=True),
    "llama 3.1": Style(LLAMA31, trims=True),
    "gemma": Style(GEMMA, trims=True),
    "mistral": Style(MISTRAL),
    "mistral v7": Style(MISTRAL_V7),
    "phi 3": Style(PHI3),
    "phi 4": Style(PHI4),
    "zephyr": Style(ZEPHYR),
    "vicuna": Style(VICUNA),
    "alpaca": Style(ALPACA, trims=True),
    "deepseek r1": Style(DEEPSEEK_R1, drops=True),
    "granite": Style(GRANITE),
    "command": Style(COMMAND, trims=True),
    "glm 4": Style(GLM4, drops=True),
    "gpt-oss": Style(HARMONY, drops=True),
    "falcon": Style(FALCON),
    "olmo": Style(OLMO),
    "jamba": Style(JAMBA),
}
