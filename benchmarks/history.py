"""Benchmarks with a memory: ratios of every `make bench`, by commit; a picture of them; and a word where one fell.

    python benchmarks/history.py [--to build/benchmarks]

`benchmarks/history.jsonl` has a line a run: commit, date, processor, repeats, load, and the ratios: by job and engine
how many times as fast as the hand-written loop a round was. Ratios are compared within one processor only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("history.jsonl")
FALL = 0.8
"""A ratio below this share of the median of its last runs has fallen."""
LAST = 5
"""Runs that a new one is compared with."""

Entry = dict[str, Any]


def processor() -> str:
    """The processor's name as the system has it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "unknown")


def commit() -> str:
    """The commit that is checked out, with a + where files differ from it; empty outside of a checkout."""
    ask = lambda *words: subprocess.run(["git", *words], capture_output=True, text=True, cwd=FILE.parent)
    head = ask("rev-parse", "--short=10", "HEAD")
    if head.returncode:
        return ""
    return head.stdout.strip() + ("+" if ask("status", "--porcelain", "--untracked-files=no").stdout.strip() else "")


def entry(jobs: Sequence[dict[str, Any]], repeats: int) -> Entry:
    """A run's line, from the results of rounds.py."""
    ratios = {
        f"{job['job']} {name}": round(way["times"], 3)
        for job in jobs
        for name, way in job["ways"].items()
        if name != "loop"
    }
    moment = datetime.now(UTC).isoformat(timespec="seconds")
    head = {
        "commit": commit(),
        "date": moment,
        "processor": processor(),
        "repeats": repeats,
        "load": os.getloadavg()[0],
    }
    return {**head, "times_as_fast_as_the_loop": ratios}


def read(path: Path = FILE) -> list[Entry]:
    """All lines, the oldest first."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def append(new: Entry, path: Path = FILE) -> None:
    """Add a line."""
    with path.open("a", encoding="utf-8") as f:
        f.write(json.dumps(new) + "\n")


def fell(entries: Sequence[Entry]) -> list[str]:
    """A sentence for every ratio of the last run that is a fifth below the median of the runs before it."""
    *before, latest = entries
    before = [e for e in before if e["processor"] == latest["processor"]][-LAST:]
    sentences = []
    for name, ratio in latest["times_as_fast_as_the_loop"].items():
        earlier = [e["times_as_fast_as_the_loop"][name] for e in before if name in e["times_as_fast_as_the_loop"]]
        if earlier and ratio < FALL * (usual := statistics.median(earlier)):
            sentences.append(
                f"{name}: {ratio:.2f} times as fast as the loop, {usual:.2f} in the last {len(earlier)} runs"
            )
    return sentences


def picture(entries: Sequence[Entry]) -> str:
    """Small multiples: a panel a job, ratios over runs of the last one's processor."""
    entries = [e for e in entries if e["processor"] == entries[-1]["processor"]]
    names = sorted({name for e in entries for name in e["times_as_fast_as_the_loop"]})
    wide = 260
    high = 120
    columns = 3
    panels = "".join(
        f'<g transform="translate({(k % columns) * wide} {40 + k // columns * high})">{_panel(entries, name)}</g>'
        for k, name in enumerate(names)
    )
    width = columns * wide
    height = 50 + -(-len(names) // columns) * high
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="11"><rect width="{width}" height="{height}" fill="#fff"/>'
        f'<text x="8" y="20" font-size="14">Times as fast as a hand-written loop, run by run, on '
        f"{escape(entries[-1]['processor'])}</text>{panels}</svg>\n"
    )


def _panel(entries: Sequence[Entry], name: str) -> str:
    points = list(_points(entries, name))
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    dots = "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="#1f5fa8"><title>{t}</title></circle>' for x, y, t in points
    )
    last = entries[-1]["times_as_fast_as_the_loop"].get(name)
    value = "" if last is None else f"{last:.2f}"
    return (
        f'<text x="8" y="12">{escape(name)}</text><text x="236" y="12" text-anchor="end">{value}</text>'
        f'<path d="M8 92H240" stroke="#bbb"/><polyline points="{path}" fill="none" stroke="#1f5fa8"/>{dots}'
    )


def _points(entries: Sequence[Entry], name: str) -> Iterator[tuple[float, float, str]]:
    values = [e["times_as_fast_as_the_loop"].get(name) for e in entries]
    most = max(v for v in values if v is not None)
    for k, (e, v) in enumerate(zip(entries, values, strict=True)):
        if v is not None:
            yield 14 + 220 * k / max(1, len(entries) - 1), 92 - 68 * v / most, escape(f"{e['commit']}: {v:.2f}")


def main() -> None:
    """The command: picture and words of the file as it is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--to", type=Path, default=Path("build/benchmarks"))
    args = parser.parse_args()
    entries = read()
    if not entries:
        raise SystemExit(f"{FILE} has no runs yet: make bench adds one")
    args.to.mkdir(parents=True, exist_ok=True)
    (args.to / "history.svg").write_text(picture(entries), encoding="utf-8")
    print("\n".join(f"FELL {line}" for line in fell(entries)) or "no ratio fell by a fifth")
    print(f"{len(entries)} runs; written to {args.to / 'history.svg'}")


if __name__ == "__main__":
    main()
