"""Checks of IO processors: their examples from data to the answer, wrong data, and that nothing is kept between requests.

Owns: the checks. Never does: know the form of any data: the capability `examples` has some. Called by: `core_kit.suite`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np

from core.api.errors import RequestError
from core_frontend.io.process import Job, OutputMessage, Steps, WrongAnswer
from core_kit.case import Failure, Subject

SIZE: Final = 8
"""Numbers of a vector."""
HOSTILE: Final[tuple[Any, ...]] = (
    *(None, True, 0, -1.5, "", "a" * 100_000, [], {}, [[]], {"": None}, ["\ud7ff", {"a": [1, {"b": None}]}]),
    *({"text": 1}, {"text": None, "texts": {}, "image": []}, [0] * 1000),
)
"""Data that is hardly ever right: whatever it is, the answer is one or a refusal."""


def has_examples(subject: Subject) -> None:
    """The capability `examples` has data, of which prompts and an answer are made."""
    for data in _examples(subject):
        answer = _answer(subject, data)
        msgspec.json.decode(answer)


def refuses_wrong_data(subject: Subject) -> None:
    """Wrong data of any form is refused with a RequestError, or served."""
    steps = Steps(subject.loaded)
    for data in HOSTILE:
        try:
            steps.run(Job("data", msgspec.json.encode(data)))
        except RequestError:
            continue
        except WrongAnswer as error:
            raise Failure(f"data {data!r:.60}: {error}") from error
        except Exception as error:
            raise Failure(
                f"data {data!r:.60}: raised {type(error).__name__} ({error}); raise RequestError for data that is wrong"
            ) from error


def keeps_nothing(subject: Subject) -> None:
    """A request has the same prompts and answer again, and with others between its steps."""
    examples = _examples(subject)
    first = [(_prompts(subject, data), _answer(subject, data)) for data in examples]
    for data in HOSTILE:
        try:
            Steps(subject.loaded).run(Job("data", msgspec.json.encode(data)))
        except RequestError:
            continue
    again = [(_prompts(subject, data), _answer(subject, data)) for data in reversed(examples)][::-1]
    for data, one, other in zip(examples, first, again, strict=True):
        if one != other:
            raise Failure(f"data {data!r:.60} had another answer when it came again")


def sees_its_outputs(subject: Subject) -> None:
    """The answer follows from the outputs, not from the data alone."""
    for data in _examples(subject):
        if _answer(subject, data, seed=0) != _answer(subject, data, seed=1):
            return
    raise Failure("the answers to all examples are the same whatever the model computed")


CHECKS: tuple[Callable[[Subject], None], ...] = (has_examples, refuses_wrong_data, keeps_nothing, sees_its_outputs)


def _examples(subject: Subject) -> list[Any]:
    examples = subject.manifest.spec.capabilities.get("examples")
    if not isinstance(examples, list) or not examples:
        raise Failure("the capability `examples` is missing; list data of requests that are right")
    return examples


def _prompts(subject: Subject, data: Any) -> dict[str, Any]:
    try:
        found: dict[str, Any] = msgspec.json.decode(Steps(subject.loaded).run(Job("data", msgspec.json.encode(data))))
    except (WrongAnswer, RequestError) as error:
        raise Failure(f"the example {data!r:.60}: {error}") from error
    return found


def _answer(subject: Subject, data: Any, seed: int = 0) -> bytes:
    """Return the answer to an example, with random numbers in place of a model's."""
    made = _prompts(subject, data)
    noise = np.random.default_rng(seed)
    outputs = []
    for prompt in made["input"]:
        length = max(1, len(prompt))
        shape = (length, SIZE) if str(made.get("task", "")).startswith("token_") else (SIZE,)
        numbers = noise.standard_normal(shape).astype(np.float32)
        outputs.append(OutputMessage(shape, numbers.tobytes(), list(range(length))))
    try:
        return Steps(subject.loaded).run(Job("answer", msgspec.json.encode(data), outputs))
    except (WrongAnswer, RequestError) as error:
        raise Failure(f"the example {data!r:.60}: {error}") from error
