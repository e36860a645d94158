"""What honest clients ask: one request of every kind whose answer must survive.

Owns: the requests. Never does: send them. Called by: the clients of the soak.

Every answer follows from its request alone, so that of an undisturbed server is the right one. A case is asked as it stands
and as a stream, and both must say the same.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
WORDS = ["sun", "moon", "tree", "river", "stone", "cloud", "field", "bird", "road", "house"]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "maximum": 200}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {
    "type": "function",
    "function": {
        "name": "look_up",
        "description": "Looks a word up.",
        "parameters": {
            "type": "object",
            "properties": {"word": {"type": "string", "maxLength": 12}},
            "required": ["word"],
            "additionalProperties": False,
        },
    },
}


ADAPTERS = ("first", "second")
"""Adapters that keep their weights."""
CHANGES = "changes"
"""The name of an adapter that operators replace by the one or the other of these."""


@dataclass(frozen=True)
class Case:
    """One request. body: as JSON, without `stream`. models: those whose answers are right; empty: that of the request."""

    name: str
    path: str
    body: dict[str, Any] = field(hash=False)
    models: tuple[str, ...] = ()


def completion(name: str, prompt: str, **fields: Any) -> Case:
    """A completion whose token ids come along."""
    body = {"prompt": prompt, "max_tokens": 32, "temperature": 0, "return_token_ids": True, **fields}
    return Case(name, COMPLETIONS, body)


def chat(name: str, text: str, **fields: Any) -> Case:
    """A conversation of one turn."""
    messages = [{"role": "user", "content": text}]
    return Case(name, CHAT, {"messages": messages, "max_tokens": 32, "temperature": 0, **fields})


def without_adapters(some: Sequence[Case]) -> list[Case]:
    """Those that an engine without adapters answers."""
    return [case for case in some if "model" not in case.body]


def long_prompt(number: int) -> str:
    """Some hundred tokens, with a beginning that no other prompt has."""
    return f"{number}: " + " ".join(WORDS[(number + step * step) % len(WORDS)] for step in range(300 + 40 * number))


def cases() -> list[Case]:
    """All of them."""
    schema = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
    found = [
        completion("greedy", "Once upon a time"),
        completion("long answer", "The history of the river", max_tokens=120, ignore_eos=True),
        completion("seeded", "A poem about the sea:", temperature=0.9, top_p=0.95, seed=7),
        completion("three choices", "My favourite animal is", n=3, temperature=1.0, seed=11, max_tokens=16),
        completion("log-probabilities", "The sky is", logprobs=3, max_tokens=12),
        completion("penalties", "la la la la", presence_penalty=0.7, frequency_penalty=0.4, repetition_penalty=1.2),
        completion("stop string", "Count: 1, 2, 3, 4,", stop=[" 9", "nine"]),
        completion("words that repeat", "a b c a b c a b c a b", temperature=0.5, seed=3),
        completion("echo", "The end of", echo=True, max_tokens=8),
        completion("bias", "Yes or no?", logit_bias={"11": 4.0}, temperature=0.8, seed=5),
        completion("a regular expression", "Date: ", structured_outputs={"regex": r"\d{4}-\d{2}-\d{2}"}),
        completion("choices of text", "Colour: ", structured_outputs={"choice": ["red", "green", "ultramarine"]}),
        chat("a chat", "Say hello."),
        chat("a seeded chat", "Tell me a story.", temperature=0.8, seed=42, max_tokens=60),
        chat("a schema", "Who are you?", response_format=schema, max_tokens=48),
        chat("two objects", "Who is it?", response_format=schema, n=2, temperature=0.9, seed=9, max_tokens=48),
        chat("a tool", "Look up a word.", tools=[TOOL], tool_choice="required", max_tokens=48),
        chat("scores of a chat", "Why?", logprobs=True, top_logprobs=2, max_tokens=10),
        completion("a line of a batch", "The history of the moon", service_tier="flex", max_tokens=60, ignore_eos=True),
        chat("a chat of a batch", "Write a list.", service_tier="flex", n=2, temperature=0.9, seed=6, max_tokens=24),
    ]
    found += [completion(f"the adapter '{name}'", "Once upon a time", model=name) for name in ADAPTERS]
    found += [
        chat(f"a chat with the adapter '{name}'", "Say hello.", model=name, temperature=0.8, seed=4)
        for name in ADAPTERS
    ]
    asked = completion(
        "an adapter that changes", "The history of the river", model=CHANGES, max_tokens=60, ignore_eos=True
    )
    found.append(replace(asked, models=ADAPTERS))
    found += [completion(f"a long prompt {number}", long_prompt(number), max_tokens=12) for number in range(6)]
    return found
