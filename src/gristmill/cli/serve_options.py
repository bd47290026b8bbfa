"""Options of `serve` alone: how requests are scheduled, who may ask, and how the server ends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = [
    "AdminTokenOption",
    "ApiKeyFileOption",
    "ApiKeyOption",
    "BlockSizeOption",
    "CorsOriginOption",
    "GraceOption",
    "HostOption",
    "ItlTargetOption",
    "KVCacheMemoryOption",
    "LogFormatOption",
    "LogLevelOption",
    "MaxNumBatchedTokensOption",
    "MaxNumSeqsOption",
    "MaxOpenPerKeyOption",
    "MaxWaitingOption",
    "MaxWaitingTokensOption",
    "MemoryRestartOption",
    "MemorySoftOption",
    "NoPrefixCachingOption",
    "PingIntervalOption",
    "PortOption",
    "RefsArgument",
    "ServedModelNameOption",
    "StallOption",
]

RefsArgument = Annotated[
    list[str], typer.Argument(metavar="REF...", help="Artifacts; model ids are their names.")
]
HostOption = Annotated[str, typer.Option("--host", help="Address to listen at.")]
PortOption = Annotated[int, typer.Option("--port", help="Port to listen at; 0 takes a free one.")]
ServedModelNameOption = Annotated[
    list[str] | None,
    typer.Option(
        "--served-model-name", metavar="NAME", help="Model id instead of the artifact's name; one a REF."
    ),
]

MaxNumSeqsOption = Annotated[
    int | None, typer.Option("--max-num-seqs", metavar="N", help="Requests that run at once.")
]
MaxNumBatchedTokensOption = Annotated[
    int | None, typer.Option("--max-num-batched-tokens", metavar="N", help="Most tokens of a step.")
]
ItlTargetOption = Annotated[
    float | None,
    typer.Option("--itl-target", metavar="MS", help="Milliseconds of a step while answers are written."),
]
NoPrefixCachingOption = Annotated[
    bool, typer.Option("--no-prefix-caching", help="Keep nothing of a prompt for later ones.")
]
MaxWaitingOption = Annotated[
    int | None, typer.Option("--max-waiting", metavar="N", help="Requests that may queue.")
]
MaxWaitingTokensOption = Annotated[
    int | None, typer.Option("--max-waiting-tokens", metavar="N", help="Prompt tokens that may queue.")
]
BlockSizeOption = Annotated[
    int | None, typer.Option("--block-size", metavar="N", help="Tokens in a block of the cache.")
]
KVCacheMemoryOption = Annotated[
    str | None,
    typer.Option("--kv-cache-memory", metavar="SIZE", help="Memory of the cache; by default up to 4GiB."),
]

ApiKeyOption = Annotated[
    list[str] | None,
    typer.Option(
        "--api-key",
        metavar="KEY",
        envvar="GRISTMILL_API_KEY",
        show_default=False,
        help="Ask for this key, KEY or NAME:KEY; again for more. Others see command lines: better a file.",
    ),
]
ApiKeyFileOption = Annotated[
    Path | None,
    typer.Option("--api-key-file", metavar="FILE", help="API keys, one NAME:KEY or KEY a line."),
]
AdminTokenOption = Annotated[
    str | None,
    typer.Option(
        "--admin-token",
        metavar="TOKEN",
        envvar="GRISTMILL_ADMIN_TOKEN",
        show_default=False,
        help="Opens /admin to its bearer. Others see command lines: better the variable.",
    ),
]
MaxOpenPerKeyOption = Annotated[
    int | None, typer.Option("--max-open-per-key", metavar="N", help="Open requests of one API key.")
]
CorsOriginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--cors-origin",
        metavar="ORIGIN",
        help="Pages from there may ask, such as https://app.example; again for more, * for all.",
    ),
]

GraceOption = Annotated[
    float, typer.Option("--grace", metavar="SECONDS", help="Time for running requests after a signal.")
]
PingIntervalOption = Annotated[
    float,
    typer.Option("--ping-interval", metavar="SECONDS", help="Longest silence of a stream that waits."),
]
StallOption = Annotated[
    float,
    typer.Option("--stall", metavar="SECONDS", help="Standstill after which /health fails."),
]
MemorySoftOption = Annotated[
    str | None,
    typer.Option("--memory-soft", metavar="SIZE", help="Memory in use that turns new requests away."),
]
MemoryRestartOption = Annotated[
    str | None,
    typer.Option("--memory-restart", metavar="SIZE", help="Memory in use that ends the server, exit code 3."),
]
LogFormatOption = Annotated[str, typer.Option("--log-format", metavar="FORM", help="text or json.")]
LogLevelOption = Annotated[
    str, typer.Option("--log-level", metavar="LEVEL", help="debug, info, warning or error.")
]
