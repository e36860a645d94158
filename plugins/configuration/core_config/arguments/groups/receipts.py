"""Arguments about receipts of answers, quotes and recorded traffic. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class ReceiptArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Receipts, quotes, recorded traffic."""

    place: ClassVar[int] = 172
    for_servers: ClassVar[bool] = True

    receipts: Annotated[
        str,
        Arg(
            "Which answers get a receipt, from which `core verify` tells whether they are the model's own. ask: those whose "
            "request asks for one.",
            choices=("off", "ask", "all"),
            since="0.2.0",
        ),
    ] = "off"
    receipt_key: Annotated[
        str | None,
        Arg(
            "File with the key that signs receipts: a private Ed25519 key in PEM (needs core-engine-observers[sign]), or 32 to "
            "4096 secret bytes for an HMAC. Unset: receipts are not signed.",
            metavar="FILE",
            since="0.2.0",
        ),
    ] = None
    quotes: Annotated[
        bool,
        Arg(
            "Foretell when requests have their first token and their end: /v1/quote answers it, Retry-After follows from it, "
            "and requests that cannot have their first token within their timeout are refused at once. Answers to requests "
            "with `energy` say what they took.",
            since="0.2.0",
        ),
    ] = False
    record_traffic: Annotated[
        str | None,
        Arg(
            "Directory in which bodies, tokens and receipts of some requests are recorded, for `core diff`. Requests with the "
            "header X-No-Record are left out. Unset: nothing is recorded.",
            metavar="DIR",
            since="0.2.0",
        ),
    ] = None
    record_share: Annotated[float, Arg("Share of the requests that are recorded.", gt=0, le=1, since="0.2.0")] = 0.01
    record_size: Annotated[
        int, Arg("Most bytes that the records take; the oldest go first.", human=True, ge=1 << 20, since="0.2.0")
    ] = 256 * 1024 * 1024
