"""What a process and its children use, read from /proc (Linux)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds so far and bytes in memory: of the process, and of the whole tree with its children (the embedded
    state server among them). `rss` = `anon` (its own) + `file` (mapped files, shared with the page cache) + shared."""

    cpu_s: float
    tree_cpu_s: float
    rss: int
    rss_anon: int
    rss_file: int
    rss_peak: int
    tree_rss: int


def usage_of(pid: int) -> Usage:
    """Of the process `pid` and all below it. Raises ProcessLookupError when it is not there."""
    try:
        memory = _memory(pid)
        processor = _cpu_s(pid)
    except (FileNotFoundError, ProcessLookupError):
        raise ProcessLookupError(f"pid {pid}: there is no such process") from None
    tree_cpu_s, tree_rss = processor, memory["VmRSS"]
    for child in descendants(pid):
        try:
            tree_cpu_s += _cpu_s(child)
            tree_rss += _memory(child)["VmRSS"]
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended between the listing and the reading.
    return Usage(
        cpu_s=processor,
        tree_cpu_s=tree_cpu_s,
        rss=memory["VmRSS"],
        rss_anon=memory["RssAnon"],
        rss_file=memory["RssFile"],
        rss_peak=memory["VmHWM"],
        tree_rss=tree_rss,
    )


def machine_cpu_s() -> float:
    """CPU seconds that all processes of the machine have used so far, with what a hypervisor took away."""
    user, nice, system, _idle, _wait, interrupts, soft, stolen = (_PROC / "stat").read_text().split()[1:9]
    return sum(map(int, (user, nice, system, interrupts, soft, stolen))) / _TICKS


def descendants(pid: int) -> Iterator[int]:
    """The processes below `pid`: children, their children, and so on."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                parents.setdefault(int(_stat(int(entry.name))[1]), []).append(int(entry.name))
            except (FileNotFoundError, ProcessLookupError):
                continue  # It ended meanwhile.
    left = list(parents.get(pid, ()))
    while left:
        child = left.pop()
        yield child
        left.extend(parents.get(child, ()))


def _stat(pid: int) -> list[str]:
    """The fields after the name: state, parent, ... (proc_pid_stat(5), from field 3 on)."""
    return (_PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def _cpu_s(pid: int) -> float:
    fields = _stat(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _memory(pid: int) -> dict[str, int]:
    """Bytes by name; a zombie has none."""
    found = dict.fromkeys(("VmRSS", "RssAnon", "RssFile", "VmHWM"), 0)
    for line in (_PROC / str(pid) / "status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in found:
            found[name] = int(value.split()[0]) * 1024
    return found
