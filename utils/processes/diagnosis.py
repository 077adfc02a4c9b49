"""Names the lost ranks in one line, from the messages of all ranks."""

import socket
from collections.abc import Sequence

from utils.processes.ranks import LEAVING, Message, Messages, RankProcess

OUT_OF_MEMORY = "possible cause: out of host memory"
STORE_ENDED = f"rank 0 or the launcher ended without an error message; {OUT_OF_MEMORY}"


def diagnose(ranks: Sequence[RankProcess], messages: Messages) -> tuple[str | None, list[RankProcess]]:
    """A line, and the ranks to kill, because they do not end by themselves; None if another rank reports a cause."""
    silent = [one for one in ranks if one.rank not in messages]
    if silent:
        return _describe_silent(silent, ranks), silent
    remaining = [one for one in ranks if not messages[one.rank] & LEAVING]
    if remaining:
        busy = [one for one in remaining if Message.WAITS not in messages[one.rank]] or remaining
        return f"{_names(busy)} does not respond; check its file system", busy
    if any(Message.FAILS in of_rank for of_rank in messages.values()):
        return None, []
    hosts = " and ".join(dict.fromkeys(one.host for one in ranks))
    return f"all ranks wait for each other; the network of {hosts} may be cut or block a port", []


def _describe_silent(silent: Sequence[RankProcess], ranks: Sequence[RankProcess]) -> str:
    own, hosts = socket.gethostname(), sorted({one.host for one in silent})
    if all(one.has_ended() for one in silent):
        return f"{_names(silent)} ended without an error message; {OUT_OF_MEMORY}"
    if all(one.is_stopped() for one in silent):
        return f"{_names(silent)} is stopped (SIGSTOP)"
    ended = f"{_names(silent)} ended without an error message or is stopped; {OUT_OF_MEMORY}"
    if own in hosts or any(one not in silent for one in ranks if one.host in hosts):
        return ended
    return f"{own} has no answer from {' and '.join(hosts)}: the network may be cut, or the host is down, or {ended}"


def describe_silent_store(ranks: Sequence[RankProcess]) -> tuple[str, list[RankProcess]]:
    """A line on a store that does not answer, and the lost ranks. Rank 0 or its launcher, on the same host, owns it.

    ranks: empty if they did not announce themselves yet.
    """
    if not ranks:
        return f"{socket.gethostname()}: the host of rank 0 does not answer; the network to it may be cut", []
    owner = ranks[0]
    if owner.host != socket.gethostname():
        lost = [one for one in ranks if one.host == owner.host]
        return _describe_silent(lost, ranks), lost
    if owner.is_stopped():
        return _describe_silent([owner], ranks), [owner]
    return f"{owner} or its launcher does not respond; it may be stopped", []


def _names(ranks: Sequence[RankProcess]) -> str:
    return " and ".join(map(str, ranks))
