"""Arguments about receipts of answers. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class ReceiptArgs(ArgumentGroup, frozen=True, kw_only=True):
    """Receipts of answers."""

    place: ClassVar[int] = 172
    for_servers: ClassVar[bool] = True

    receipts: Annotated[
        str,
        Arg(
            "Which answers get a receipt, from which `core verify` tells whether they are the model's own. ask: those whose "
            "request asks for one.",
            choices=("off", "ask", "all"),
        ),
    ] = "off"
    receipt_key: Annotated[
        str | None,
        Arg(
            "File with the key that signs receipts: a private Ed25519 key in PEM (needs core-observers[sign]), or 32 to 4096 "
            "secret bytes for an HMAC. Unset: receipts are not signed.",
            metavar="FILE",
        ),
    ] = None
