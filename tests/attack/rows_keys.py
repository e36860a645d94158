"""Ways around the API keys: spellings of the path, of the method and of the key itself."""

from dataclasses import replace

from tests.attack.row import CLOSED, KEY, UMLAUT_KEY, Row

REFUSED = frozenset({CLOSED, 307, 400, 401, 404, 405})

# (what is odd about it, method, target); none of them may be served to somebody without a key.
DETOURS = [
    ("the plain path", "GET", "/v1/models"),
    ("a path with the root of a proxy", "GET", "/v/v1/models"),
    ("a path with another root of a proxy", "GET", "/api/v1/models"),
    ("a doubled slash in front", "GET", "//v1/models"),
    ("a doubled slash inside", "GET", "/v1//models"),
    ("a slash at the end", "GET", "/v1/models/"),
    ("an encoded slash", "GET", "/v1%2Fmodels"),
    ("encoded letters", "GET", "/%76%31/models"),
    ("a letter encoded twice", "GET", "/%2576%2531/models"),
    ("a dot segment", "GET", "/health/../v1/models"),
    ("an encoded dot segment", "GET", "/health/%2e%2e/v1/models"),
    ("a dot in front", "GET", "/./v1/models"),
    ("a semicolon", "GET", "/v1;a=b/models"),
    ("a query that looks like a path", "GET", "/v1/models?/health"),
    ("capitals", "GET", "/V1/models"),
    ("a NUL", "GET", "/v1%00/models"),
    ("a backslash", "GET", "/\\v1/models"),
    ("an absolute target", "GET", "http://127.0.0.1/v1/models"),
    ("an absolute target of another host", "GET", "http://example.org/v1/models"),
    ("HEAD", "HEAD", "/v1/models"),
    ("POST", "POST", "/v1/models"),
    ("a method of lower case", "get", "/v1/models"),
    ("a method that nobody knows", "BREW", "/v1/models"),
    ("PUT of a completion", "PUT", "/v1/completions"),
    ("the end of all requests", "POST", "/abort_requests"),
    ("the end of all requests under the other path", "POST", "/inference/v1/abort_requests"),
    ("the drain of an engine", "POST", "/drain_engine?engine=0"),
    ("the reset of the prefix cache", "POST", "/reset_prefix_cache"),
    ("the reset behind a doubled slash", "POST", "//reset_prefix_cache"),
    ("the reset with a slash at the end", "POST", "/reset_prefix_cache/"),
]

# (what is odd about it, the header's value or values, may it be served)
KEYS = [
    ("no key", (), False),
    ("an empty header", (b"",), False),
    ("the scheme alone", (b"Bearer",), False),
    ("the key alone", (KEY.encode(),), False),
    ("another scheme", (b"Basic " + KEY.encode(),), False),
    ("a prefix of the key", (b"Bearer " + KEY[:-1].encode(),), False),
    ("more than the key", (b"Bearer " + KEY.encode() + b"x",), False),
    ("the key twice", (b"Bearer " + KEY.encode() + b" " + KEY.encode(),), False),
    ("the key in capitals", (b"Bearer " + KEY.upper().encode(),), False),
    ("letters outside ASCII", ("Bearer schlüssel".encode(),), False),
    ("bytes that are no UTF-8", (b"Bearer \xff\xfe",), False),
    ("50,000 letters", (b"Bearer " + b"x" * 50_000,), False),
    ("a scheme of lower case", (b"bearer " + KEY.encode(),), True),
    ("a scheme of capitals and several spaces", (b"BEARER   " + KEY.encode(),), True),
    ("a space after it", (b"Bearer " + KEY.encode() + b" ",), True),
]


def rows() -> list[Row]:
    """All of this theme."""
    found = [
        Row(
            f"without a key on the server '{setup}': {what}",
            target,
            method=method,
            keyed=False,
            plain=True,
            allowed=REFUSED,
            setup=setup,
        )
        for setup in ("plain", "root /", "root /v", "root /api")
        for what, method, target in DETOURS
    ]
    for what, values, good in KEYS:
        headers = tuple(("Authorization", value) for value in values)
        allowed = frozenset({200} if good else {400, 401, 431})
        found.append(
            Row(f"a key with {what}", "/v1/models", headers=headers, method="GET", keyed=False, allowed=allowed)
        )
    umlaut = Row(
        "a configured key outside ASCII, as UTF-8",
        "/v1/models",
        headers=(("Authorization", f"Bearer {UMLAUT_KEY}".encode()),),
        method="GET",
        keyed=False,
        allowed=frozenset({200}),
        setup="key ü",
    )
    other = replace(
        umlaut,
        name="another key outside ASCII",
        headers=(("Authorization", "Bearer schlússel".encode()),),
        allowed=frozenset({401}),
    )
    return [*found, umlaut, other]
