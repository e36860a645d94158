"""Texts to pool: vectors, classes and scores, on servers that give them and on servers that give text."""

from collections.abc import Callable
from typing import Any

from tests.attack.make import chat, completion, given, nested, with_raw
from tests.attack.row import Row
from tests.attack.rows_texts import ANY, CHATS, COMPLETIONS, MB, REFUSED, text

EMBEDDINGS, POOLING, CLASSIFY, SCORE, RERANK = "/v1/embeddings", "/pooling", "/classify", "/score", "/rerank"
EMBED = "/v2/embed"
FINE = frozenset({200})
EITHER = frozenset({200, 400})
MANY = 300_000
Fields = Callable[[], dict[str, Any]]

SOUND: dict[str, dict[str, Any]] = {
    EMBEDDINGS: {"input": "Hi"},
    POOLING: {"input": "Hi"},
    CLASSIFY: {"input": "Hi"},
    SCORE: {"text_1": "Hi", "text_2": ["Ho", "Hu"]},
    EMBED: {"texts": ["Hi"]},
    RERANK: {"query": "Hi", "documents": ["Ho", {"text": "Hu"}]},
}
"""A request of each route."""

# (what is odd, path, fields that differ from a sound request, statuses, what the error names)
ODD: list[tuple[str, str, dict[str, Any], frozenset[int], tuple[str, ...]]] = [
    ("no input", EMBEDDINGS, {"input": None}, frozenset({400}), ("input",)),
    ("an empty text", EMBEDDINGS, {"input": ""}, frozenset({400}), ("input",)),
    ("an empty list", EMBEDDINGS, {"input": []}, frozenset({400}), ("input",)),
    ("a list with an empty text", EMBEDDINGS, {"input": ["a", ""]}, frozenset({400}), ("input",)),
    ("a list with an empty list", EMBEDDINGS, {"input": [[]]}, frozenset({400}), ("input",)),
    ("a number as input", EMBEDDINGS, {"input": 5}, frozenset({400}), ("input",)),
    ("an object as input", EMBEDDINGS, {"input": {"text": "a"}}, frozenset({400}), ("input",)),
    ("texts and numbers", EMBEDDINGS, {"input": ["a", 5]}, frozenset({400}), ("input",)),
    ("numbers and texts", EMBEDDINGS, {"input": [5, "a"]}, frozenset({400}), ("input",)),
    ("texts and token ids", EMBEDDINGS, {"input": ["a", [5]]}, FINE, ()),
    ("lists in lists", EMBEDDINGS, {"input": [[[5]]]}, frozenset({400}), ("input",)),
    ("a truth value as a token id", EMBEDDINGS, {"input": [[True]]}, frozenset({400}), ("input",)),
    ("a fraction as a token id", EMBEDDINGS, {"input": [[5.5]]}, frozenset({400}), ("input",)),
    ("a negative token id", EMBEDDINGS, {"input": [[-1]]}, frozenset({400}), ("input",)),
    ("a token id that is none", EMBEDDINGS, {"input": [[2**31 - 1]]}, frozenset({400}), ("input", "vocabulary")),
    ("a token id of 64 bits", EMBEDDINGS, {"input": [[2**63]]}, frozenset({400}), ("input", "vocabulary")),
    ("a token id of 5,000 digits", EMBEDDINGS, {"input": [[10**4000]]}, frozenset({400}), ("input",)),
    ("no dimensions", EMBEDDINGS, {"dimensions": 0}, frozenset({400}), ("dimensions",)),
    ("negative dimensions", EMBEDDINGS, {"dimensions": -1}, frozenset({400}), ("dimensions",)),
    ("2,147,483,647 dimensions", EMBEDDINGS, {"dimensions": 2**31 - 1}, frozenset({400}), ("dimensions",)),
    ("2,147,483,648 dimensions", EMBEDDINGS, {"dimensions": 2**31}, frozenset({400}), ("dimensions",)),
    ("an encoding that is none", EMBEDDINGS, {"encoding_format": "hex"}, frozenset({400}), ("encoding_format",)),
    ("a type of numbers that is none", EMBEDDINGS, {"embed_dtype": "int1"}, frozenset({400}), ("embed_dtype",)),
    ("a type of numbers in JSON", EMBEDDINGS, {"embed_dtype": "float16"}, frozenset({400}), ("embed_dtype",)),
    ("a truncation to nothing", EMBEDDINGS, {"truncate_prompt_tokens": 0}, frozenset({400}), ("truncate_",)),
    ("a truncation to -2", EMBEDDINGS, {"truncate_prompt_tokens": -2}, frozenset({400}), ("truncate_",)),
    ("a truncation to more than fits", EMBEDDINGS, {"truncate_prompt_tokens": 10**9}, frozenset({400}), ("truncate_",)),
    ("a prompt's name that is none", EMBEDDINGS, {"prompt_name": "x"}, frozenset({400}), ("prompt_name",)),
    ("a list as a prompt's name", EMBEDDINGS, {"prompt_name": ["x"]}, frozenset({400}), ("prompt_name",)),
    ("activations that differ", EMBEDDINGS, {"normalize": True, "use_activation": False}, frozenset({400}), ("use_",)),
    ("a salt that is a list", EMBEDDINGS, {"cache_salt": [1]}, frozenset({400}), ("cache_salt",)),
    ("data without an IO processor", POOLING, {"input": None, "data": {"a": 1}}, frozenset({400}), ("data",)),
    ("input and data without an IO processor", POOLING, {"data": [1]}, frozenset({400}), ("data",)),
    ("data of nothing", POOLING, {"input": None, "data": None}, frozenset({400}), ("input",)),
    ("data for vectors", EMBEDDINGS, {"data": 1}, frozenset({400}), ("data",)),
    ("a timeout of nothing", EMBEDDINGS, {"timeout": 0}, frozenset({400}), ("timeout",)),
    ("an unknown field", EMBEDDINGS, {"imput": "Hi"}, frozenset({400}), ("imput",)),
    ("messages in place of input", EMBEDDINGS, {"messages": []}, frozenset({400}), ("messages",)),
    ("metadata of every kind", EMBEDDINGS, {"metadata": [1, {"a": None}]}, FINE, ()),
    (
        "parts of a text in one vector",
        EMBEDDINGS,
        {"late_chunking_params": {"chunk_size": 2}},
        frozenset({400}),
        ("late_",),
    ),
    ("no texts", EMBED, {"texts": []}, frozenset({400}), ("texts",)),
    ("a number among texts", EMBED, {"texts": ["a", 5]}, frozenset({400}), ("texts",)),
    ("texts and inputs", EMBED, {"inputs": []}, frozenset({400}), ("texts",)),
    ("an input without parts", EMBED, {"texts": None, "inputs": [{"content": 5}]}, frozenset({400}), ("inputs",)),
    ("a type of vectors that is none", EMBED, {"embedding_types": ["int1"]}, frozenset({400}), ("embedding_types",)),
    ("vectors of no size", EMBED, {"output_dimension": 0}, frozenset({400}), ("output_dimension",)),
    ("an input type that is none", EMBED, {"input_type": "x"}, frozenset({400}), ("input_type",)),
    ("a task that is none", POOLING, {"task": "translate"}, frozenset({400}), ("task",)),
    ("a task of another model", POOLING, {"task": "classify"}, frozenset({400}), ("task",)),
    ("a vector a token", POOLING, {"task": "token_embed"}, FINE, ()),
    ("classes of a model without", CLASSIFY, {}, frozenset({400}), ("task", "classify")),
    ("one side", SCORE, {"text_2": None}, frozenset({400}), ("text_2",)),
    ("no side", SCORE, {"text_1": None, "text_2": None}, frozenset({400}), ("text_1",)),
    ("two texts and three", SCORE, {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, frozenset({400}), ("text_1",)),
    ("sides under names of two kinds", SCORE, {"data_1": "a"}, frozenset({400}), ("data_1", "text_1")),
    ("an instruction without a template", SCORE, {"instruction": "Look."}, frozenset({400}), ("instruction",)),
    ("no query", RERANK, {"query": None}, frozenset({400}), ("query",)),
    ("an empty query", RERANK, {"query": ""}, frozenset({400}), ("query",)),
    ("a list as the query", RERANK, {"query": ["a"]}, frozenset({400}), ("query",)),
    ("no documents", RERANK, {"documents": []}, frozenset({400}), ("documents",)),
    ("a number as a document", RERANK, {"documents": [5]}, frozenset({400}), ("documents",)),
    ("a document without text", RERANK, {"documents": [{"title": "a"}]}, frozenset({400}), ("documents",)),
    ("a document with an empty text", RERANK, {"documents": ["a", {"text": ""}]}, frozenset({400}), ("documents",)),
    ("a negative number of best ones", RERANK, {"top_n": -1}, frozenset({400}), ("top_n",)),
    ("more best ones than there are", RERANK, {"top_n": 2**31 - 1}, FINE, ()),
    ("no tokens of documents", RERANK, {"max_tokens_per_doc": 0}, frozenset({400}), ("max_tokens_per_doc",)),
    ("a number for documents in the answer", RERANK, {"return_documents": 5}, frozenset({400}), ("return_documents",)),
]

LARGE: list[tuple[str, str, Fields, frozenset[int], tuple[str, ...]]] = [
    ("5,000 texts", EMBEDDINGS, lambda: {"input": ["a"] * 5000}, REFUSED, ("input",)),
    ("300,000 texts", EMBEDDINGS, lambda: {"input": ["a"] * MANY}, REFUSED, ("input",)),
    ("300,000 token ids", EMBEDDINGS, lambda: {"input": [5] * MANY}, REFUSED, ("input",)),
    ("300,000 texts for Cohere's route", EMBED, lambda: {"texts": ["a"] * MANY}, REFUSED, ("texts",)),
    ("300,000 documents", RERANK, lambda: {"documents": ["a"] * MANY}, REFUSED, ("documents",)),
    ("a text of 2 MB", EMBEDDINGS, lambda: {"input": text(2 * MB)}, REFUSED, ("input",)),
    ("a text of 20 MB", EMBEDDINGS, lambda: {"input": text(20 * MB)}, REFUSED, ("input",)),
    ("a text of 2 MB that is cut", EMBEDDINGS, lambda: {"input": text(2 * MB), "truncate_prompt_tokens": -1}, ANY, ()),
    ("a query of 2 MB", RERANK, lambda: {"query": text(2 * MB)}, REFUSED, ("documents", "query")),
    ("a document of 2 MB", RERANK, lambda: {"documents": [text(2 * MB)], "max_tokens_per_doc": 3}, ANY, ()),
    ("a prompt's name of 1 MB", EMBEDDINGS, lambda: {"prompt_name": text(MB)}, REFUSED, ("prompt_name",)),
    ("a cache salt of 1 MB", EMBEDDINGS, lambda: {"cache_salt": text(MB)}, ANY, ("cache_salt",)),
]

DEPTHS = (900, 100_000)
PLACES = ((EMBEDDINGS, "input"), (EMBEDDINGS, "metadata"), (EMBEDDINGS, "user"), (RERANK, "documents"))


def rows() -> list[Row]:
    """All of this theme."""
    odd = [_row(name, path, {**SOUND[path], **fields}, allowed, names) for name, path, fields, allowed, names in ODD]
    large = [_large(*row) for row in LARGE]
    return [*odd, *large, *_deep(), *_other_models()]


def _row(name: str, path: str, fields: dict[str, Any], allowed: frozenset[int], names: tuple[str, ...]) -> Row:
    return Row(f"vectors: {name}", path, given(fields), allowed=allowed, names=names, setup="vectors")


def _large(name: str, path: str, fields: Fields, allowed: frozenset[int], names: tuple[str, ...]) -> Row:
    return Row(
        f"vectors: {name}",
        path,
        lambda: given({**SOUND[path], **fields()}),
        allowed=allowed,
        names=names,
        setup="vectors",
        large=True,
    )


def _deep() -> list[Row]:
    """Nested values, where any value may stand and where none may."""
    return [
        Row(
            f"vectors: lists nested {depth} deep in {field}",
            path,
            with_raw(field, nested(depth), of={**SOUND[path], "model": None}),
            allowed=EITHER,
            names=(field, "nested"),
            setup="vectors",
        )
        for path, field in PLACES
        for depth in DEPTHS
    ]


def _other_models() -> list[Row]:
    """What a model does not give is refused with a sentence that says what it gives."""
    ways = ("--runner", "vectors", "text")
    found = [Row(f"{path} of a model that gives text", path, given(body), names=ways) for path, body in SOUND.items()]
    asked = {
        COMPLETIONS: completion(),
        CHATS: chat(),
        "/v1/responses": given({"input": "Hi"}),
        "/v1/messages": given({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}),
    }
    found += [
        Row(f"{path} of a model that gives vectors", path, body, names=ways, setup="vectors")
        for path, body in asked.items()
    ]
    streamed = completion(stream=True)
    found.append(Row("a stream of a model that gives vectors", COMPLETIONS, streamed, names=ways, setup="vectors"))
    return found
