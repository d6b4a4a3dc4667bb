"""The state of a run as its folder shows it, during or after the run. It only reads, so it cannot disturb a run."""

from __future__ import annotations

import csv
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from ..contract.errors import MedleyError, WireError, named
from . import events
from .as_json import shown_seed
from .history import Row, history_of
from .result import HISTORY, RUN, shown
from .run_folder import LEDGER, described, resuming

Standing = Literal["alive", "answered", "awaited", "late", "lost", "refused", "not asked yet", "left", "stopped"]

TAIL = 1 << 22
"""How many bytes to read from the end of a ledger."""

DEPLOYED = "flower.json"
"""A file that only folders of deployed runs have."""

BOOT = Path("/proc/sys/kernel/random/boot_id")
"""A name for the time since this machine started; only Linux has it."""

STEADY = 600.0
"""The period, in seconds, over which exchanges per minute are counted."""

RECENT = 120.0
"""The most seconds since its last answer for which a client counts as alive."""


@dataclass
class ClientState:
    """A client's state according to the last exchanges.

    Attributes:
        name: its name, if clients have names
        standing: alive: it gave the last answer that it was asked for, within the last two minutes of a run in
            progress; answered: the same, longer ago or in a run that has ended; awaited: its node has not answered for
            some seconds; late, lost: it did not answer; refused: it failed; left: it is no longer a member; stopped:
            its run's process is gone
        answered: the time of its last answer, in seconds since 1970; None before the first
        down, up: payload bytes of its last request and answer
        total: bytes of its answers in the part of the ledger that was read
    """

    client: int
    standing: Standing = "not asked yet"
    answered: float | None = None
    round: int | None = None
    down: int = 0
    up: int = 0
    total: int = 0
    why: str = ""
    name: str = ""


@dataclass
class RunView:
    """A run as its folder shows it.

    Attributes:
        folder: its name
        state: "running", "stopped" if its process is gone without an end, or the outcome of the run
        message: the sentence that belongs to the outcome
        round, rounds: the last whole round, and the number of rounds; None if they are not known
        rate: exchanges per minute, over the last ten minutes
        asked, lost, late, refused: requests in the rounds of the events, and how many were lost, late or refused
        bytes_down, bytes_up: payload bytes of all evaluated rounds
        log: the last lines, newest last
        at: the time of this view
    """

    folder: str
    method: str
    seed: str
    state: str
    message: str = ""
    round: int = 0
    rounds: int | None = None
    history: list[Row] = field(default_factory=list)
    clients: list[ClientState] = field(default_factory=list)
    rate: float = 0.0
    asked: int = 0
    lost: int = 0
    late: int = 0
    refused: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    log: list[str] = field(default_factory=list)
    at: float = 0.0

    def plain(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self)

    @property
    def standings(self) -> Counter[str]:
        """The number of clients in each standing."""
        return Counter(c.standing for c in self.clients)


def view(folder: Path, at: float | None = None) -> RunView:
    """The state of the run in ``folder`` at the time ``at``, by default the present.

    Raises WireError if there is no run, and for events and deliveries that no run wrote.
    """
    try:
        return _view(folder, time.time() if at is None else at)
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as e:
        if isinstance(e, MedleyError):
            raise
        raise WireError(
            f"the run in {folder} cannot be shown: {events.FILE} or {LEDGER} there is damaged ({type(e).__name__}: "
            f"{e}); delete {events.FILE}, on which no result depends, or take a copy of the folder"
        ) from None


def _view(folder: Path, at: float) -> RunView:
    if not (folder / RUN).exists():
        if (folder / events.FILE).exists():
            raise WireError(f"the run in {folder} has no rounds yet: {_last(folder)}")
        raise WireError(f"there is no run in {folder}: pass the folder of a run, as in medley run --save {folder}")
    about = described(folder)
    records = events.read(folder)
    settings = about.get("settings", {})
    rows = _history(folder)
    seed = shown_seed(int(settings.get("seed", 0)), settings)
    v = RunView(str(folder), str(settings.get("method", "?")), seed, "stopped", at=at)
    v.history = rows
    if rows:
        v.round = int(rows[-1]["round"])
        v.bytes_down = int(rows[-1].get("bytes_down", 0))
        v.bytes_up = int(rows[-1].get("bytes_up", 0))
    start, end = _count(v, records)
    pid = start.get("pid")
    if end is not None:
        v.state = str(end.get("outcome"))
        v.message = str(end.get("message", ""))
    elif pid is not None and alive(pid, start.get("born")):
        v.state = "running"
    else:
        command = f"medley deploy run --resume {folder}" if (folder / DEPLOYED).exists() else resuming(folder)
        v.message = f"its process is gone; {command} resumes it from the last checkpoint"
    recent = [e["at"] for e in records if e.get("event") == "exchange" and e["at"] > at - STEADY]
    if len(recent) > 1:
        until = at if v.state == "running" else recent[-1]
        v.rate = 60 * len(recent) / max(until - recent[0], 1e-3)
    v.clients = _clients(folder, records)
    for c in v.clients:
        is_over = v.state != "running"
        if is_over and c.standing == "awaited":
            c.standing = "lost"
        elif v.state == "stopped" and c.standing in ("alive", "late", "not asked yet"):
            c.standing = "stopped"
        elif c.standing == "alive" and (is_over or at > (c.answered or 0.0) + RECENT):
            c.standing = "answered"
    for c, name in zip(v.clients, settings.get("client_names", ()), strict=False):
        c.name = str(name)
    names = {k: str(name) for k, name in enumerate(settings.get("client_names", ()))}
    v.log = [line(e, names) for e in records[-400:] if is_logged(e)][-40:]
    return v


def _count(v: RunView, records: Iterable[Mapping[str, Any]]) -> tuple[Mapping[str, Any], Mapping[str, Any] | None]:
    """Enter the rounds and requests of the events; the last start, empty if there is none, and the end after it."""
    start: Mapping[str, Any] = {}
    end = None
    for e in records:
        match e.get("event"):
            case "start":
                start = e
                end = None
                v.round = int(e.get("round", 0))
                v.rounds = e.get("of")
                if not v.round:  # it starts over, if there was no checkpoint yet
                    v.asked = v.lost = v.late = v.refused = 0
            case "round":
                v.round = int(e["round"])
                v.asked += int(e["asked"])
                v.lost += int(e["lost"])
                v.late += int(e["late"])
                v.refused += int(e["refused"])
            case "end":
                end = e
    return start, end


def _last(folder: Path) -> str:
    """The last event of a run that has not begun, as a line."""
    lines = [line(e) for e in events.read(folder) if is_logged(e)]
    return lines[-1] if lines else "its server app starts"


def _history(folder: Path) -> list[Row]:
    text = ""
    with suppress(OSError):
        text = (folder / HISTORY).read_text(encoding="utf-8")
    with suppress(ValueError):
        return history_of(text[: text.rfind("\n") + 1])
    return []


def alive(pid: Any, born: Any = None) -> bool:
    """Whether a process of this number runs on this machine; of a run on another machine nothing is known.

    ``born`` is what `birth` returned for it, since the number may by now be another process's. Default: unknown.
    """
    if not isinstance(pid, int) or pid < 1 or (born is not None and birth(pid) not in (None, born)):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    with suppress(OSError, ValueError):  # a dead process that nobody has waited for
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    return True


def birth(pid: int) -> str | None:
    """When a process began, as a text that is unique for its number; None if this system cannot tell."""
    with suppress(OSError, IndexError):
        start = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[19]
        return f"{BOOT.read_text(encoding='utf-8').strip()} {start}"
    return None


def _clients(folder: Path, records: Iterable[Mapping[str, Any]]) -> list[ClientState]:
    """The clients, from the end of the ledger and the times of its exchanges."""
    ends = dict[tuple[int, int], Mapping[str, Any]]()
    n = 0
    excluded = dict[int, str]()
    absent = set[int]()
    awaited = set[int]()
    since = 0.0
    for e in records:
        if e.get("event") == "exchange":
            ends[int(e["round"]), int(e["exchange"])] = e
        elif e.get("event") == "start":
            awaited = set()
            n = int(e.get("clients", 0))
        elif e.get("event") == "members":
            absent = absent.difference(e["joined"]).union(e["left"])
        elif e.get("event") == "awaited":
            awaited = {*map(int, e["clients"])}
            since = float(e["since"])
        elif e.get("event") == "refused":
            excluded = {int(i): str(why) for i, why in e.get("clients", {}).items()}
    states = {i: ClientState(i) for i in range(min(n, 1 << 16))}
    for line in csv.reader(events.tail(folder / LEDGER, TAIL)):
        if len(line) != 7 or not line[0].isdigit():
            continue
        round, number, i, down, up = (int(line[k]) for k in (0, 1, 3, 4, 5))
        c = states.setdefault(i, ClientState(i))
        end = ends.get((round, number), {})
        c.total += up
        if i in end.get("lost", ()):
            c.standing = "lost"
            c.why = ""
            why = end.get("refused", {}).get(str(i))
            if why:
                c.standing = "refused"
                c.why = why
        elif i in end.get("late", ()):
            c.standing = "late"
        else:
            c.standing = "alive"
            c.why = ""
            c.answered = end.get("at")
            c.round = round
            c.down = down
            c.up = up
    for i in awaited & states.keys():
        states[i].standing = "awaited"
        states[i].why = f"since {time.strftime('%H:%M:%S', time.localtime(since))}"
    for i in absent & states.keys():
        states[i].standing = "left"
    for i, why in excluded.items():
        states[i] = ClientState(i, "refused", why=why)
    return [states[i] for i in sorted(states)]


def names(folder: Path) -> dict[int, str]:
    """The clients' names by id, as a run's folder has them; empty if there are none, or no run yet."""
    with suppress(MedleyError):
        return {k: str(name) for k, name in enumerate(described(folder).get("settings", {}).get("client_names", ()))}
    return {}


def is_logged(e: Mapping[str, Any]) -> bool:
    """Whether an event appears as a line of the log."""
    kind = e.get("event")
    return kind not in ("exchange", "app", "data", "members", "visits") and (kind != "awaited" or "waited" in e)


def line(e: Mapping[str, Any], names: Mapping[int, str] | None = None) -> str:
    """An event as a line of the log, with clients' names if they have some."""
    at = time.strftime("%H:%M:%S", time.localtime(e["at"]))
    match e.get("event"):
        case "round":
            silent = ", ".join(f"{e[k]} {k}" for k in ("lost", "late", "refused") if e.get(k))
            count = f"{e['asked'] - e['lost'] - e['late']} of {e['asked']} answers"
            answers = f"round {e['round']}: {count} in {e['took']:,.2f} s"
            figures = ", ".join(shown(e["figures"], k) for k in e.get("figures", {}) if not k.endswith("_within"))
            return f"{at} {', '.join(part for part in (answers, silent, figures) if part)}"
        case "start":
            verb = f"continues after round {e['round']} of" if e.get("round") else "begins its rounds, 1 to"
            what = f"{verb} {e.get('of')}" if e.get("of") else "begins to measure a model"
            return f"{at} {e.get('method')}, seed {e.get('seed')}: {what}"
        case "end":
            return f"{at} {e.get('outcome')}{': ' + e['message'] if e.get('message') else ''}"
        case "awaited":
            whom = named(e["clients"], names or {})
            verb = "an evaluation waits" if e.get("kind") == "evaluate" else "waits"
            return f"{at} {verb} for {whom}, for {e['waited']} s so far and {e['most']} s at most"
        case "refused":
            return f"{at} refused: {'; '.join(map(str, e.get('clients', {}).values()))}"
    return f"{at} {e.get('level', e.get('event'))}: {e.get('message', '')}"


def prometheus(v: RunView) -> str:
    """The view in Prometheus' text format."""
    label = f'run="{_escaped(v.folder)}",method="{_escaped(v.method)}",seed="{v.seed}"'
    out = list[str]()

    def gauge(name: str, text: str, *values: tuple[str, float | None], kind: str = "gauge") -> None:
        samples = [(more, value) for more, value in values if value is not None]
        if samples:
            out.extend([f"# HELP medley_{name} {text}", f"# TYPE medley_{name} {kind}"])
            out.extend(f"medley_{name}{{{label}{more}}} {value:.10g}" for more, value in samples)

    gauge("running", "1 while the run's process is at work.", ("", float(v.state == "running")))
    gauge("failed", "1 after a failure, or a process that is gone.", ("", float(v.state in ("failed", "stopped"))))
    gauge("round", "The last whole round.", ("", v.round))
    gauge("rounds", "Rounds in all.", ("", v.rounds))
    gauge("exchanges_per_minute", "Exchanges a minute, over the last ten minutes.", ("", v.rate))
    gauge("clients", "Clients by their standing.", *((f',standing="{k}"', v.standings[k]) for k in get_args(Standing)))
    sums = (("lost", v.lost), ("late", v.late), ("refused", v.refused))
    gauge("unanswered_total", "Requests without an answer.", *((f',why="{k}"', n) for k, n in sums), kind="counter")
    directions = (',direction="down"', v.bytes_down), (',direction="up"', v.bytes_up)
    gauge("bytes_total", "Payload bytes up to the last evaluated round.", *directions, kind="counter")
    last = v.history[-1] if v.history else {}
    gauge("figure", "Figures of the last evaluated round.", *((f',name="{_escaped(k)}"', last[k]) for k in last))
    answers = ((f',client="{c.client}"', c.answered) for c in v.clients)
    gauge("client_last_answer_timestamp_seconds", "Time of each client's last answer.", *answers)
    return "\n".join(out) + "\n"


def _escaped(text: str) -> str:
    plain = "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)
    return plain.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
