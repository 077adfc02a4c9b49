"""The state of a process of this host."""

from pathlib import Path


def read_stat(pid: int | str) -> tuple[str, str, str]:
    """State, parent and start time (in clock ticks since the host started); empty texts if there is no such process."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", "", ""
    return fields[0], fields[1], fields[19]
