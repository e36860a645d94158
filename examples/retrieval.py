"""Answer a question from your own files: `python examples/retrieval.py QUESTION FILE... [--encoder E] [--model M]`.

An encoder turns the paragraphs of the files and the question into vectors; the three nearest paragraphs become part of the
prompt. Both models run in this process. With servers the same is `/v1/embeddings` of one and `/v1/chat/completions` of another.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from core import LLM, SamplingParams

NEAREST = 3


def paragraphs(paths: list[str]) -> list[str]:
    """Return the texts between empty lines, each with the name of its file."""
    texts = [(Path(path).name, part.strip()) for path in paths for part in Path(path).read_text().split("\n\n")]
    return [f"[{name}] {text}" for name, text in texts if text]


def nearest(encoder: LLM, question: str, passages: list[str]) -> list[str]:
    """Return the passages whose vectors are nearest to the question's, the nearest first."""
    vectors = [output.outputs.embedding for output in encoder.embed([question, *passages])]
    wanted, *others = [[value / (math.hypot(*vector) or 1.0) for value in vector] for vector in vectors]
    scores = [sum(a * b for a, b in zip(wanted, vector, strict=True)) for vector in others]
    ranked = sorted(range(len(passages)), key=lambda index: -scores[index])
    return [passages[index] for index in ranked[:NEAREST]]


def answer(llm: LLM, question: str, passages: list[str]) -> str:
    """Return the model's answer, which is asked to keep to the passages."""
    content = "\n\n".join(["Answer from these passages, and name the file:", *passages, question])
    output = llm.chat([{"role": "user", "content": content}], SamplingParams(temperature=0, max_tokens=128))[0]
    return output.outputs[0].text.strip()


def main() -> None:
    """Read the files, find passages, and answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("question")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--encoder", default="sentence-transformers/all-MiniLM-L6-v2")
    parser.add_argument("--model", help="unset: the embedded model")
    options = parser.parse_args()
    with LLM(model=options.encoder, runner="pooling") as encoder:
        found = nearest(encoder, options.question, paragraphs(options.files))
    with LLM(model=options.model) as llm:
        print(answer(llm, options.question, found))
    print("\n".join(f"  {passage[:100]}" for passage in found))


if __name__ == "__main__":
    main()
