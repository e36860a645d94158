"""All hostile requests. Each theme is a file of its own; `ROWS` is what tests and the runner read."""

from tests.attack import (
    rows_http,
    rows_items,
    rows_keys,
    rows_lists,
    rows_sessions,
    rows_shapes,
    rows_texts,
    rows_token_io,
    rows_vectors,
)
from tests.attack.row import Row

THEMES: dict[str, list[Row]] = {
    "keys": rows_keys.rows(),
    "texts": rows_texts.rows(),
    "lists": rows_lists.rows(),
    "shapes": rows_shapes.rows(),
    "items": rows_items.rows(),
    "sessions": rows_sessions.rows(),
    "token ids": rows_token_io.rows(),
    "vectors": rows_vectors.rows(),
    "http": rows_http.rows(),
}
ROWS: list[Row] = [row for theme in THEMES.values() for row in theme]
