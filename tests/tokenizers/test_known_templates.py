"""Chat templates by name, against the forms that the authors of the models publish."""

import pytest

from core.api.errors import RequestError
from core_tokens.chat.chat_template import ChatTemplate
from core_tokens.chat.known_templates import known_templates

SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Bye"},
]
PUBLISHED = {
    "chatml": "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello"
    "<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n<|im_start|>assistant\n",
    "llama2": "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello </s><s>[INST] Bye [/INST]",
    "llama3": "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|><|start_header_id|>user<|end_header_id|>"
    "\n\nHi<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\nHello<|eot_id|><|start_header_id|>user"
    "<|end_header_id|>\n\nBye<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "<s>[INST] Be brief.\n\nHi [/INST] Hello</s>[INST] Bye [/INST]",
    "gemma": "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n"
    "<start_of_turn>user\nBye<end_of_turn>\n<start_of_turn>model\n",
    "vicuna": "<s>Be brief.\n\nUSER: Hi\nASSISTANT: Hello</s>\nUSER: Bye\nASSISTANT:",
    "alpaca": "Be brief.\n\n### Instruction:\nHi\n\n### Response:\nHello</s>\n\n### Instruction:\nBye\n\n### Response:\n",
    "zephyr": "<|system|>\nBe brief.</s>\n<|user|>\nHi</s>\n<|assistant|>\nHello</s>\n<|user|>\nBye</s>\n<|assistant|>\n",
    "phi3": "<s><|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello<|end|>\n<|user|>\nBye<|end|>\n"
    "<|assistant|>\n",
}


@pytest.mark.parametrize("name", known_templates())
def test_a_known_template_writes_the_published_form(name: str) -> None:
    assert ChatTemplate(known_templates()[name], SPECIAL).render(CHAT) == PUBLISHED[name]


@pytest.mark.parametrize("name", known_templates())
def test_a_known_template_continues_an_answer_and_hides_no_message(name: str) -> None:
    template = ChatTemplate(known_templates()[name], SPECIAL)
    text = template.render(CHAT[1:3], add_generation_prompt=False, continue_final_message=True)
    assert text.endswith("Hello") and "Hi" in text and "Be brief." not in text


def test_the_error_for_a_model_without_a_template_names_them() -> None:
    with pytest.raises(RequestError) as error:
        ChatTemplate(None).render(CHAT)
    assert all(name in str(error.value) for name in known_templates())
