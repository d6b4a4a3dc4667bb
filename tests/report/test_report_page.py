from __future__ import annotations

import base64
import hashlib
import re
import shutil
import struct
import subprocess
import xml.etree.ElementTree as ET
import zlib
from collections import Counter
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import medley as md
from medley.contract.errors import MedleyError, RecipeError
from medley.report import Markup, page, save
from medley.report.table import caption
from medley.storage.result import Status
from support.made_up_runs import board, run

OWN = ("calibration_error", "worst_class_loss", "brier", "regret_norm")
VOID = {"meta", "input", "br", "hr", "img", "link"}
PARTITION = SimpleNamespace(
    sizes=np.array([30, 12, 0]),
    counts=np.array([[30, 0], [2, 10], [0, 0]]),
    distance=0.37,
    labels=np.array(["<a>", "b"]),
)


class Strict(HTMLParser):
    """Every tag closed in order, ids unique, nothing that loads anything."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: Counter[str] = Counter()
        self.ids: Counter[str] = Counter()
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open
        assert all(n == 1 for n in self.ids.values())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1
        for name, value in attrs:
            assert name not in ("src", "href", "srcset", "action"), (tag, value)
            assert not name.startswith("on"), (tag, name)
            if name == "id":
                self.ids[value or ""] += 1
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] += 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "script"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def section(text: str, heading: str) -> str:
    return text.split(f"<h2>{heading}</h2>")[1].split("</section>")[0]


def table_rows(text: str) -> list[list[str]]:
    body = text.split("<tbody>")[1].split("</tbody>")[0]
    rows = re.findall(r"<tr>(.*?)</tr>", body)
    return [[re.sub("<[^>]*>", "", cell) for cell in re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row)] for row in rows]


@pytest.mark.parametrize(
    "results",
    [
        [],
        [run()],
        [run(rounds=0)],
        [run(died=True, rounds=0)],
        board(1),
        board(2),
        board(5),
        board(3, accuracy=False),
        board(3, accuracy=False, gap=True),
    ],
    ids=["nothing", "one run", "x0 alone", "stillborn", "one seed", "two seeds", "five", "no accuracy", "gap"],
)
def test_pages_are_well_formed_and_load_nothing(results: list[Any]) -> None:
    text = page(results, title="T", command="medley compare x.toml", partition=PARTITION)
    seen = Strict(text)
    for svg in re.findall(r"<svg xmlns.*?</svg>(?=</figure>)", text):
        ET.fromstring(svg)
    assert seen.tags["script"] == 1
    assert not re.search(r"url\(|@import|//[a-z]+\.", text.replace("http://www.w3.org/2000/svg", ""))
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"] * text.count("xmlns=")
    assert "medley compare x.toml" in seen.text
    assert not re.search(r"\b(nan|inf|None)\b", seen.text)


def test_hostile_names_stay_text() -> None:
    bad = "\"><script>alert(1)</script><img src=x onerror=alert(1)>'&amp;"
    runs = [run(m, s, died=m == bad and s == 1, settings={bad: bad, "same": bad}) for m in (bad, "B") for s in range(3)]
    for r in runs:
        r.status = Status(r.status.outcome, bad)
    text = page(runs, title=bad, command=bad, partition=PARTITION, settings={bad: bad}, base=bad, extra=[(bad, bad)])
    seen = Strict(text)
    assert (seen.tags["script"], seen.tags["img"], seen.tags["b"]) == (1, 0, Strict(page(board(3))).tags["b"])
    assert seen.text.count(bad) > 10
    assert "<a>" in seen.text
    assert "default-src 'none'" in text


def test_the_policy_admits_this_script_and_no_other() -> None:
    text = page([run()])
    script = text.split("<script>")[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text


def test_a_diverged_run_is_in_every_table_and_figure() -> None:
    text = page(board(3))
    rows = table_rows(section(text, "Results"))
    assert [r[0] for r in rows] == ["A", "B", "C"]
    assert "ended" not in section(page(board(3)[:-1]), "Results")
    assert rows[2][-1] == "diverged after round 7 on 1 of 3 seeds"
    assert rows[2][4] == "2 of 2"
    assert [r[0] for r in table_rows(section(text, "Cost"))] == ["A", "B", "C"]
    failed = table_rows(section(text, "Every run"))
    assert [(r[0], r[1], r[-1]) for r in failed] == [("C", "2", "diverged: the loss is not finite; try a smaller lr")]
    assert section(text, "Learning curves").count('data-broken="1"') == 2 * 6
    assert "C: diverged after round 7 on 1 of 3 seeds." in text.split("</header>")[0]
    dead = page([run("A", s) for s in range(2)] + [run("X", s, died=True) for s in range(2)])
    assert table_rows(section(dead, "Results"))[1][:5] == ["X", "–", "–", "", "–"]
    assert "no run came to its end" in section(dead, "Spread")


def test_the_first_lines_say_what_came_out() -> None:
    head = page(board(5)).split("</header>")[0]
    assert "3 methods · 5 seeds · up to 30 rounds" in head
    assert "B has the highest mean accuracy" in head
    assert "against A, better on 5 of 5." in head
    alike = [run("A", s, top=0.7, noise=0.02) for s in range(5)] + [run("B", s, top=0.7, noise=0.02) for s in range(5)]
    assert "No method stands out" in page(alike).split("</header>")[0]
    assert "±" not in str(table_rows(page(board(1))))


def ends(**figures: list[float]) -> list[Any]:
    """Runs that end at these accuracies, a seed each."""
    out = []
    for method, values in figures.items():
        for s, v in enumerate(values):
            out.append(run(method, s, rounds=1, noise=0.0))
            out[-1].history[-1]["accuracy"] = v
    return out


@pytest.mark.parametrize(
    ("runs", "first"),
    [
        (ends(A=[0.7, 0.71, 0.72], B=[0.8, 0.81, 0.83]), "B stands out. B has the highest mean accuracy"),
        (ends(A=[0.7, 0.8, 0.9], B=[0.8, 0.7, 0.92]), "No method stands out: the differences by seed are within"),
        (
            ends(A=[0.7, 0.8, 0.9], B=[0.75, 0.78, 0.92], C=[0.1, 0.2, 0.3]),
            "B leads, though these seeds do not tell it from A. B has the highest",
        ),
        (
            [*ends(A=[0.7, 0.71, 0.72]), *ends(B=[0.8, 0.81, 0.82, 0.83])[2:]],
            "No method stands out: B shares fewer than two seeds with A. B has the highest",
        ),
        (ends(A=[0.7], B=[0.8]), "One seed cannot tell luck from merit. B has the highest"),
        (ends(A=[0.7, 0.8]), "A ends at accuracy"),
    ],
    ids=["one", "none", "some", "other seeds", "one seed", "alone"],
)
def test_the_first_sentence_says_whether_a_method_stands_out(runs: list[Any], first: str) -> None:
    assert f'<p class="lede">{first}' in page(runs)


def test_methods_that_coincide_are_said_and_stand_out_together() -> None:
    runs = ends(A=[0.7, 0.71, 0.72], B=[0.8, 0.81, 0.83], Twin=[0.8, 0.81, 0.83])
    head = page(runs).split("</header>")[0]
    assert '<p class="lede">B and Twin stand out. B has the highest' in head
    assert "B and Twin coincide: every round of every seed has the same figures." in head
    apart = ends(A=[0.7, 0.71], B=[0.8, 0.81], Twin=[0.8, 0.81])
    apart[-1].history[0]["loss"] += 1e-9
    assert "coincide" not in page(apart)


def test_learning_rates_are_rates_and_no_factors() -> None:
    pace = {"pace": "Pace(lr=0.3, epochs=1)"}
    tuned = "tuned to lr=1.0 and server_lr=0.5 of 0.5, 1.0 (4 points); lr=1.0 is the largest of its grid"
    by_rate = [run("A", s, settings={"lr multiplier": 1.0, "tuning": tuned, **pace}) for s in (0, 1)]
    double = [run("B", s, settings={"lr multiplier": 2.0, **pace}) for s in (0, 1)]
    text = page([*by_rate, *double])
    assert "A tuned to lr=0.3 and server_lr=0.5 of 0.5, 1.0 (4 points); lr=0.3 is the largest" in text
    assert "B with lr=0.6, untuned." in text
    grid = "tuned to lr=2.0 of 0.5, 2.0 (2 points)"
    listed = [run("A", s, settings={"lr multiplier": 2.0, "tuning": grid, **pace}) for s in (0, 1)]
    assert "tuned to lr=0.6 of 0.15, 0.6 (2 points)" in page(listed)
    assert ["clients", "lr=0.6"] in table_rows(section(page(listed), "Settings"))
    unequal = [run("A", s, settings={"lr multiplier": 2.0, "tuning": grid, "pace": "Pace(lr=Each())"}) for s in (0, 1)]
    assert "tuned to lr=×2 of ×0.5, ×2 (2 points)" in page(unequal)


def test_what_was_spent_has_its_delta_and_unit() -> None:
    def private(name: str, delta: float, unit: str) -> list[Any]:
        settings = {"method.private.delta": delta, "method.private.unit": unit}
        out = [run(name, s, settings=settings) for s in (0, 1)]
        for r in out:
            r.history = [row | {"epsilon": 0.1 * row["round"]} for row in r.history]
        return out

    one, two = private("P", 1e-5, "client"), private("Q", 1e-6, "row")
    for text in (Strict(page(one)).text, caption(one)):
        assert "ε is at δ = 1e-05, per client." in text
    assert "ε is at δ = 1e-05, per client (P); at δ = 1e-06, per row (Q)." in Strict(page([*one, *two])).text
    assert "ε is at" not in page(board(2))


@pytest.mark.slow
def test_a_target_counts_who_got_there() -> None:
    text = page(board(3, noise=0.001), target={"accuracy": 0.72})
    rows = table_rows(section(text, "Results"))
    assert [r[1] for r in rows] == ["0 of 3", "3 of 3", "2 of 3"]
    assert rows[0][2] == "–"
    # B has 0.1 + 0.7 (1 - e^(-8t/30)) >= 0.72 first at t = 9; a round takes 1, 1.1 and 1.2 s.
    assert "B reached accuracy of at least 72.0 % soonest: 9.90 ± 2.24 s of virtual time" in text
    assert "has the highest mean" not in text
    both = page(board(3), target={"accuracy": 0.72, "loss": 0.5})
    assert "accuracy of at least 72.0 % or loss of at most 0.5" in both
    assert "No run reached accuracy of at least 99.0 %." in page(board(3), target={"accuracy": 0.99})
    default = section(page(board(3), target={}), "Cost")
    assert "where A ended on average" in default
    assert "What it took" not in section(page([run()]), "Cost")


def test_settings_common_once_and_differing_by_method() -> None:
    runs = [
        run(m, s, settings={"seed": s, "rounds": 30, "method": {m: {"mu": mu}}, "pace": {"lr": [0.1, 0.2]}})
        for m, mu in (("A", 0.0), ("B", 0.5))
        for s in range(2)
    ]
    differing, common = section(page(runs, settings={"recipe": "x.toml"}), "Settings").split("</details>")[:2]
    assert table_rows(differing) == [["method.mu", "0.0", "0.5"]]
    assert table_rows(common) == [
        ["recipe", "x.toml"],
        ["seed", "0, 1"],
        ["rounds", "30"],
        ["pace.lr", escape("[0.1, 0.2]")],
    ]


def test_streams_show_their_matrices() -> None:
    summary = {"acc": 0.8, "fgt": 0.1, "learn": 0.88, "matrix": [[0.9], [0.7, 0.9]]}
    text = page([run("A", s, summary=summary) for s in range(2)])
    assert table_rows(section(text, "Results"))[0][1:4] == ["80.0 %", "88.0 %", "10.0 %"]
    tasks = section(text, "Tasks")
    assert table_rows(tasks) == [["after task 1", "90.0", "–"], ["after task 2", "70.0", "90.0"]]
    shades = [float(s) for s in re.findall(r"color-mix\(in srgb,var\(--c0\) ([\d.]+)%", tasks)]
    assert shades == pytest.approx([45.4, 36.2, 45.4], abs=0.1)
    assert "mean accuracy on the tasks so far" in section(text, "Tasks")


def test_partition_section() -> None:
    text = section(page([run()], partition=PARTITION), "Who holds what")
    assert "3 clients · 42 training rows · 0 to 30 a client, median 12 · 1 of 2 labels" in text
    assert "label distance 0.37" in text
    plain = SimpleNamespace(sizes=np.array([5, 5]), counts=np.zeros((2, 0), dtype=np.int64), distance=0.0)
    assert "distance" not in section(page([run()], partition=plain), "Who holds what")


def test_extra_sections() -> None:
    text = page([run()], extra=[("One", Markup("<em>raw</em>")), ("Two", "<em>text</em>")])
    assert section(text, "One") == "<em>raw</em>"
    assert section(text, "Two") == "<p>&lt;em&gt;text&lt;/em&gt;</p>"


@pytest.mark.slow
def test_long_histories_stay_small() -> None:
    short = len(page(board(2)))
    long = len(page([run(m, s, rounds=10_000) for m in "ABC" for s in range(2)]))
    assert long < 300_000
    assert long < 8 * short


@pytest.mark.slow
def test_many_methods_keep_apart() -> None:
    text = page([run(f"M{k}", s) for k in range(20) for s in range(2)])
    seen = Strict(text)
    assert {f"s{k}" for k in range(20)} <= set(seen.ids)
    assert "stroke-dasharray:7 3" in text


def test_unknown_base_is_named() -> None:
    with pytest.raises(RecipeError, match=r"Did you mean 'A'|no 'a'"):
        page(board(2), base="a")


def test_saving_is_whole_or_not_at_all(tmp_path: Path) -> None:
    path = save(tmp_path / "deep" / "report.html", board(2), title="é")
    assert path.read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert [p.name for p in path.parent.iterdir()] == ["report.html"]
    before = path.read_bytes()
    with pytest.raises(RecipeError):
        save(path, board(2), base="nobody")
    assert path.read_bytes() == before
    (tmp_path / "taken").mkdir()
    with pytest.raises(MedleyError, match="cannot write"):
        save(tmp_path / "taken", board(2))


def pixels(png: bytes) -> np.ndarray:
    """An 8-bit PNG without interlacing as [height, width, channels]."""
    at, data = 8, b""
    while at < len(png):
        size, kind = struct.unpack(">I4s", png[at : at + 8])
        if kind == b"IHDR":
            width, height, depth, colour, *_, lace = struct.unpack(">IIBBBBB", png[at + 8 : at + 21])
            assert (depth, lace) == (8, 0)
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            data += png[at + 8 : at + 8 + size]
        at += size + 12
    raw = np.frombuffer(zlib.decompress(data), np.uint8).reshape(height, 1 + width * channels)
    out = np.zeros((height + 1, width + 1, channels), np.int64)
    for y, line in enumerate(raw, 1):
        rest = line[1:].reshape(width, channels).astype(np.int64)
        if line[0] in (0, 2):
            out[y, 1:] = rest + (out[y - 1, 1:] if line[0] else 0)
        elif line[0] == 1:
            out[y, 1:] = np.cumsum(rest, axis=0)
        else:
            for x in range(1, width + 1):
                a, b, c = out[y, x - 1], out[y - 1, x], out[y - 1, x - 1]
                if line[0] == 3:
                    guess = (a + b) // 2
                else:
                    near = np.abs(np.stack([b - c, a - c, a + b - 2 * c]))
                    guess = np.choose(near.argmin(0), [a, b, c])
                out[y, x] = (rest[x - 1] + guess) & 255
        out[y] &= 255
    return out[1:, 1:]


@pytest.mark.slow
def test_a_browser_draws_it_and_its_script_runs(tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium on PATH")
    path = save(tmp_path / "x.html", board(3), title="T", partition=PARTITION)
    common = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"]
    common += ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"]
    common += ["--window-size=600,900", "--enable-logging=stderr", "--v=0"]

    def browse(name: str, *flags: str) -> tuple[str, str]:
        folder = f"--user-data-dir={tmp_path / name}"
        done = subprocess.run([*common, folder, *flags, path.as_uri()], capture_output=True, timeout=120, check=True)
        return done.stdout.decode(), done.stderr.decode()

    _, said = browse("a", f"--screenshot={tmp_path / 'x.png'}")
    assert "CONSOLE" not in said
    image = pixels((tmp_path / "x.png").read_bytes())[..., :3]
    assert image.shape == (900, 600, 3)
    shades, seen = np.unique(image.reshape(-1, 3), axis=0, return_counts=True)
    assert seen.max() > 0.5 * 600 * 900
    assert list(shades[seen.argmax()]) == [0xFC, 0xFC, 0xFA]
    for colour in ((0x13, 0x55, 0xC6), (0xB9, 0x3F, 0x04), (0x00, 0xA7, 0x8E)):
        assert (np.abs(shades - colour).sum(1) < 6).any()
    dom, _ = browse("b", "--dump-dom")
    # The script has moved every curve's title into its label, and added the read-out.
    assert dom.count('class="plot"') == 6
    assert dom.count(' aria-label="accuracy over') == dom.count(' aria-label="loss over') == 3
    assert 'class="tip"' in dom


def test_in_a_stream_it_says_which_figures_are_of_one_task_alone() -> None:
    plain, coming = board(accuracy=False), board(accuracy=False)
    for r in coming:
        for row in r.history:
            row["task"] = 0 if row["round"] < 15 else 1
    before, text = page(plain), page(coming)
    assert "has the lowest mean loss, last task:" in text
    assert "loss, current task over round" in text
    assert "says nothing about what was forgotten" in text
    assert "What it took to reach loss" in before
    assert "What it took to reach" not in text
    assert not re.search("(last|current) task", before)


def described(method: str, seed: int, **settings: Any) -> Any:
    given = {"data": "digits [1438, 64] #5a0849e866c7", "problem": "Network", "module": "Sequential(...)"}
    given |= {"partition": "Dirichlet(clients=100, alpha=0.1, minimum=1)", "participation": "Fraction(fraction=0.1)"}
    return run(method, seed, settings={**given, "lr multiplier": 1.0, **settings})


def test_the_title_and_the_first_lines_say_what_was_compared() -> None:
    tuned = "tuned to lr=2.0 of 1.0, 2.0 (2 points, 1 seed, 3 rounds each)"
    runs = [described("A", s, tuning=tuned) for s in range(2)] + [described("B", s) for s in range(2)]
    head = Strict(page(runs)).text.split("Results")[0]
    assert "A and B on digits" in head
    assert "digits [1438, 64] · Network Sequential, 2 parameters · Dirichlet(clients=100, alpha=0.1) · 10 % of" in head
    assert f"Tuning: A {tuned.replace('lr=2.0 of 1.0, 2.0', 'lr=×2 of ×1, ×2')}; B untuned." in head
    assert "A, B, C and 2 others on digits" in page([described(m, 0) for m in "ABCDE"])
    assert "<h1>Comparison</h1>" in page([])


def test_own_metrics_have_columns_curves_and_intervals() -> None:
    runs = [run(m, s, settings={"metrics": {"top2": "higher"}}) for m in "AB" for s in range(5)]
    for r in runs:
        for row in r.history:
            row["top2"] = row["accuracy"] / 2
    text = page(runs)
    assert '<th scope="col">top2</th>' in section(text, "Results")
    assert " ± " in table_rows(section(text, "Results"))[0][4 + 1]
    assert "top2 over round" in section(text, "Learning curves")


def test_equal_seeds_have_no_seed_by_seed_and_nothing_plus_minus_zero() -> None:
    runs = [run(m, s, noise=0.0) for m in "AB" for s in range(3)]
    text = page(runs)
    assert "All seeds have the same figures." in text
    assert "Seed by seed" not in text.split("</header>")[0]
    assert "better on" not in text
    assert "± 0" not in Strict(text).text


def test_intervals_that_leave_the_range_give_way_to_the_seeds() -> None:
    ends = {"A": (0.1, 0.9, 0.3), "B": (0.5, 0.52, 0.51)}
    runs = [run(m, s, rounds=1) for m in ends for s in range(3)]
    for r in runs:
        r.history[-1]["accuracy"] = ends[r.method][r.seed]
    rows = table_rows(section(page(runs), "Results"))
    assert [row[1] for row in rows] == ["43.3 % (10.0, 90.0, 30.0)", "51.0 % (50.0, 52.0, 51.0)"]
    assert rows[1][2] == "+7.7 pp (+40.0, −38.0, +21.0)"
    more = [run("A", s, rounds=1) for s in range(4)]
    for r, v in zip(more, (0.1, 0.9, 0.3, 0.8), strict=True):
        r.history[-1]["accuracy"] = v
    assert table_rows(section(page(more), "Results"))[0][1].startswith("52.5 ± ")


@pytest.mark.slow
def test_bands_that_would_hide_the_curves_are_left_out() -> None:
    clear = section(page(board(5, noise=0.001)), "Learning curves")
    wild = section(page([run(f"M{k}", s, noise=0.4) for k in range(14) for s in range(2)]), "Learning curves")
    assert "fill-opacity:.14" in clear
    assert "fill-opacity:.14" not in wild


def test_one_method_with_the_least_of_several_costs_is_named_once() -> None:
    runs = [run(m, s, rounds=30) for m in "AB" for s in range(2)]
    for r in runs:
        for row in r.history:
            t = row["round"]
            row["accuracy"] = t / (20 if r.method == "A" else 10)
            row |= {"seconds": t * (1.0 if r.method == "A" else 5.0)}
            row |= {"exchanges": 3 * t, "bytes_up": t * (500.0 if r.method == "A" else 100.0)}
    head = page(runs, target={"accuracy": 1.0}).split("</header>")[0]
    assert "A reached accuracy of at least 100.0 % soonest: 20.0 s of virtual time, 20 rounds, 60 exchanges" in head
    assert head.count("B took the fewest") == 1
    assert "B took the fewest rounds and exchanges and bytes: 10, 30, 11.0 kB." in head


@pytest.mark.slow
@pytest.mark.parametrize("methods", [3, 14])
def test_no_column_is_cut_at_1200_px(tmp_path: Path, methods: int) -> None:
    browser = shutil.which("chromium") or shutil.which("chromium-browser")
    if browser is None:
        pytest.skip("there is no chromium on PATH")
    runs = [
        run(
            f"Method{k} (mu=0.1)",
            s,
            noise=0.4,
            died=k == s == 1,
            settings={"lr": k, "metrics": dict.fromkeys(OWN, "lower")},
        )
        for k in range(methods)
        for s in range(2)
    ]
    for r in runs:
        for row in r.history:
            row |= dict.fromkeys(OWN, 0.1 + r.seed)
    measured = (
        "<script>onload=()=>{for(const d of document.querySelectorAll('details'))d.open=true;"
        "document.title='cut '+[...document.querySelectorAll('.scroll')].filter(e=>e.scrollWidth>e.clientWidth).length"
        "+' of '+document.querySelectorAll('.scroll').length}</script></body>"
    )
    text = re.sub(r"<meta http-equiv=[^>]*>", "", page(runs)).replace("</body>", measured)
    (tmp_path / "x.html").write_text(text, encoding="utf-8")
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--window-size=1200,900", "--dump-dom"]
    done = subprocess.run(
        [browser, *flags, f"--user-data-dir={tmp_path / 'b'}", (tmp_path / "x.html").as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    found = re.search(r"<title>cut (\d+) of (\d+)</title>", done.stdout.decode())
    assert found is not None
    assert int(found[1]) == 0
    assert int(found[2]) >= 6


@pytest.mark.slow
def test_who_holds_what_names_clients_and_labels_and_says_whether_seeds_agree() -> None:
    X = np.random.default_rng(0).normal(size=(60, 2))
    wards = np.repeat(["Bern", "Lyon", "Porto"], [30, 20, 10])
    data = md.datasets.Dataset(X, np.where(X[:, 0] > 0, "alive", "died"), keys={"ward": wards})
    problem = md.problems.Logistic(mu=0.1)
    natural = md.Federation(problem, data=data, partition=md.partitions.ByKey("ward"))
    told = page([run("A", s) for s in range(2)], partition=natural.describe())
    for word in ("Bern", "Lyon", "Porto", "alive", "died"):
        assert f">{word}</text>" in told
    assert "Every seed has the same partition." in told
    drawn = md.Federation(problem, data=data, partition=md.partitions.IID(3))
    told = page([run("A", s) for s in range(2)], partition=drawn.describe())
    assert "Every seed may draw its own" in told
    assert ">alive</text>" in told
    named = {"client_names": ["Bern", "Lyon", "Porto"]}
    fixed = page([run(m, s, settings=named) for m in "AB" for s in range(2)])
    assert "A seed fixes the cohorts, the batch order" in fixed
    assert "A seed fixes the partition, the cohorts" in page([run(m, s) for m in "AB" for s in range(2)])


def test_runs_of_other_versions_or_threads_are_named() -> None:
    alike = page(board())
    assert "The runs differ in" not in alike
    results = board()
    for k, r in enumerate(results):
        r.environment = {"torch": "2.9", "machine": "<x>", "threads": 1 + 3 * (k == 1)}
    results[0].environment = {}  # an earlier folder, which does not record it
    made = section(page(results), "Made with")
    assert "The runs differ in threads (1; 4), so equal settings may give other last digits." in made
    results[2].environment["torch"] = "2.8<b>"
    made = section(page(results), "Made with")
    assert "differ in torch (2.8&lt;b&gt;; 2.9) and threads (1; 4), so" in made
