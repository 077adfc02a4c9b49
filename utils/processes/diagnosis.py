"""Names the lost ranks in one line, from the answers of all ranks."""

import os
import socket
from collections.abc import Collection, Mapping, Sequence

from utils.processes.ranks import Counts, RankProcess

OUT_OF_MEMORY = "possible cause: out of host memory"
STORE_ENDED = f"rank 0 or the launcher ended without an error message; {OUT_OF_MEMORY}"


def diagnose(
    ranks: Sequence[RankProcess], left: Collection[int], answers: Mapping[int, Counts], timed_out: bool
) -> tuple[str | None, list[RankProcess]]:
    """A message, and the ranks to kill, because they do not end by themselves; None if another rank reports a cause.

    left: ranks that have left the run. answers: the collective operations that each answering rank has started, by
    rank.
    timed_out: this rank has waited for the timeout, and saw no closed connection.
    """
    remaining = [one for one in ranks if one.rank not in left]
    silent = [one for one in remaining if one.rank not in answers]
    late = [one for one in ranks if one.rank in _ranks_behind(answers)] if timed_out else []
    if silent:
        return _silent_message(silent, ranks, timed_out), silent
    if remaining:
        busy = [one for one in remaining if one in late] or remaining  # the others leave the run later
        return f"{join_names(busy)} does not respond; check its file system", busy
    if late:
        return f"{join_names(late)} did not arrive at a collective operation that the other ranks wait in", []
    if timed_out:
        hosts = " and ".join(dict.fromkeys(one.host for one in ranks))
        cut = f"the network of {hosts} may be cut or block a port"
        return f"all ranks wait in the same collective operation; {cut}", []
    return None, []


def _ranks_behind(counts: Mapping[int, Counts]) -> list[int]:
    """The ranks that have not started an operation of a group which another rank has started.

    A rank without counts does not count: its GPU may hang.
    """
    counts = {rank: of_rank for rank, of_rank in counts.items() if of_rank}
    groups = {group for of_rank in counts.values() for group in of_rank}
    latest = {group: max(of_rank.get(group, -1) for of_rank in counts.values()) for group in groups}
    return [rank for rank, of_rank in counts.items() if any(of_rank.get(group, -1) < latest[group] for group in groups)]


def _silent_message(silent: Sequence[RankProcess], ranks: Sequence[RankProcess], timed_out: bool) -> str:
    own, silent_ranks = socket.gethostname(), {one.rank for one in silent}
    hosts = sorted({one.host for one in silent})
    if all(one.is_local_and_ended() for one in silent):
        return ended_message(silent)
    if all(one.is_stopped() for one in silent):
        return f"{join_names(silent)} is stopped (SIGSTOP)"
    whole_hosts = own not in hosts and all(one.rank in silent_ranks for one in ranks if one.host in hosts)
    if timed_out and whole_hosts:
        return (
            f"{own} has no answer from {join_names(silent)}: the network to {' and '.join(hosts)} may be cut, or "
            f"{'that host is' if len(hosts) == 1 else 'those hosts are'} down or stopped"
        )
    return f"{join_names(silent)} ended without an error message or is stopped; {OUT_OF_MEMORY}"


def join_names(ranks: Sequence[RankProcess]) -> str:
    return " and ".join(map(str, ranks))


def ended_message(ended: Sequence[RankProcess]) -> str:
    return f"{join_names(ended)} ended without an error message; {OUT_OF_MEMORY}"


def cut_off_message(ranks: Sequence[RankProcess], seconds: float) -> str:
    """One line on a key-value store that does not answer; rank 0 or its launcher, on the same host, owns it.

    ranks: empty if they did not announce themselves yet.
    """
    own = socket.gethostname()
    if not ranks:
        return f"{own}: the host of rank 0 has not answered for {seconds:.0f} s; the network to it may be cut"
    host = ranks[0].host
    silent = f"for {seconds:.0f} s (TIMEOUT_SECONDS)"
    if host == own:
        owner = f"the launcher of {ranks[0]}" if ranks[0].pid == os.getpid() else f"{ranks[0]} or its launcher"
        return f"{owner} has not answered {silent}; it may be stopped"
    lost = [one for one in ranks if one.host == host]
    return f"{own} has no answer from {host}, the host of {join_names(lost)}, {silent}: the network may be cut"
