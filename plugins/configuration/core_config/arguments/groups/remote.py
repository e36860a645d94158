"""Arguments about API server and engine server as two commands. Owns: declarations only. Called by: schema."""

from typing import Annotated, ClassVar

from core.args.arg import Arg, ArgumentGroup


class RemoteArgs(ArgumentGroup, frozen=True, kw_only=True):
    """API server and engine apart."""

    place: ClassVar[int] = 180
    for_servers: ClassVar[bool] = True

    headless: Annotated[
        bool,
        Arg(
            "Run engines alone, for an API server that another command runs: `core serve MODEL "
            "--data-parallel-size-local 0` (or with fewer engines than --data-parallel-size) with the same "
            "--data-parallel-address and --data-parallel-rpc-port."
        ),
    ] = False
    data_parallel_size_local: Annotated[
        int | None,
        Arg(
            "Engines that this command starts; unset: all (beside --headless: those from --data-parallel-start-rank on). Fewer "
            "than --data-parallel-size, also 0: it answers HTTP requests, and the other engines are those of --headless "
            "commands.",
            ge=0,
            short=("dpl",),
        ),
    ] = None
    data_parallel_address: Annotated[
        str | None,
        Arg(
            "Address at which the API server listens for engines; unset: 127.0.0.1. One that other machines reach needs "
            "--engine-key-file.",
            short=("dpa",),
        ),
    ] = None
    data_parallel_rpc_port: Annotated[
        int | None, Arg("Port at that address; unset: 29550.", ge=1, le=65535, short=("dpp",))
    ] = None
    engine_key_file: Annotated[
        str | None,
        Arg(
            "File with a secret of at least 32 characters, the same for API server and engine, which only its owner may read "
            "(`openssl rand -hex 32 > FILE; chmod 600 FILE`). All between them is then encrypted, and nobody else takes part."
        ),
    ] = None
    engine_connect_timeout: Annotated[
        float, Arg("Seconds that API server and engine wait for each other, at the start and after a loss.", gt=0)
    ] = 600.0
