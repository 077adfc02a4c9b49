"""Names the lost ranks in one line, from the messages of all ranks."""

import socket
from collections.abc import Sequence

from utils.processes.ranks import Message, Messages, RankProcess

OUT_OF_MEMORY = "possible cause: out of host memory"
STORE_ENDED = f"rank 0 or the launcher ended without an error message; {OUT_OF_MEMORY}"


def diagnose(ranks: Sequence[RankProcess], messages: Messages, timed_out: bool) -> tuple[str | None, list[RankProcess]]:
    """A line, and the ranks to kill, because they do not end by themselves; None if another rank reports a cause.

    timed_out: this rank has waited for the timeout, and saw no closed connection.
    """
    silent = [one for one in ranks if one.rank not in messages]
    if silent:
        return describe_silent(silent, ranks, timed_out), silent
    remaining = [one for one in ranks if Message.LEAVES not in messages[one.rank]]
    if remaining:
        busy = [one for one in remaining if Message.WAITS not in messages[one.rank]] or remaining
        return f"{_names(busy)} does not respond; check its file system", busy
    if timed_out:
        hosts = " and ".join(dict.fromkeys(one.host for one in ranks))
        return f"all ranks wait for each other; the network of {hosts} may be cut or block a port", []
    return None, []


def describe_silent(silent: Sequence[RankProcess], ranks: Sequence[RankProcess], timed_out: bool) -> str:
    """A line on ranks that do not answer."""
    own, hosts = socket.gethostname(), sorted({one.host for one in silent})
    if all(one.is_stopped() for one in silent):
        return f"{_names(silent)} is stopped (SIGSTOP)"
    whole_hosts = own not in hosts and all(one in silent for one in ranks if one.host in hosts)
    if timed_out and whole_hosts:
        return (
            f"{own} has no answer from {_names(silent)}: the network to {' and '.join(hosts)} may be cut, or "
            f"{'that host is' if len(hosts) == 1 else 'those hosts are'} down or stopped"
        )
    stopped = "" if all(one.has_ended() for one in silent) else " or is stopped"
    return f"{_names(silent)} ended without an error message{stopped}; {OUT_OF_MEMORY}"


def describe_silent_store(ranks: Sequence[RankProcess]) -> tuple[str, list[RankProcess]]:
    """A line on a store that does not answer, and the lost ranks. Rank 0 or its launcher, on the same host, owns it.

    ranks: empty if they did not announce themselves yet.
    """
    if not ranks:
        return f"{socket.gethostname()}: the host of rank 0 does not answer; the network to it may be cut", []
    owner = ranks[0]
    if owner.host != socket.gethostname():
        lost = [one for one in ranks if one.host == owner.host]
        return describe_silent(lost, ranks, timed_out=True), lost
    if owner.is_stopped():
        return describe_silent([owner], ranks, timed_out=True), [owner]
    return f"{owner} or its launcher does not respond; it may be stopped", []


def _names(ranks: Sequence[RankProcess]) -> str:
    return " and ".join(map(str, ranks))
