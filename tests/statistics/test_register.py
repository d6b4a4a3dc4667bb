"""The register: it knows patients, whatever table they come in, and nothing leaves that is not on the disk."""

from __future__ import annotations

import importlib.util
import io
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from medley.statistics.register import Register, file_of, plain
from support.pairs import crossed, quick

pytest.importorskip("formulaic")

from medley.contract import BadData, MedleyError
from medley.statistics import Rules, Study, Withheld


def patients(n: int = 100, seed: int = 0) -> Any:
    import pandas as pd

    g = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "id": np.arange(n) + 1000,
            "age": g.choice(np.arange(180, 950), n, replace=False) / 10,
            "sex": g.choice(["F", "M"], n),
            "income": g.normal(60_000, 9_000, n).round(),
        }
    )


def total(rows: Any, folder: Path, where: str = "", rules: Rules | None = None, column: str = "income") -> float:
    cell = Study({"Bern": rows}, rules=rules or Rules(), registers=folder).describe([column], where=where).cells[column]
    if cell[""].n is None:
        raise Withheld("withheld")
    return cell[""].n * (cell[""].mean or 0.0)


def victim(rows: Any) -> tuple[str, str]:
    """Two conditions that differ in one patient."""
    ages = np.sort(rows["age"])
    return f"age < {ages[50]}", f"age < {ages[51]}"


def again(rows: Any) -> Any:
    """The rows as another CSV file has them."""
    import pandas as pd

    return pd.read_csv(io.StringIO(rows.to_csv(index=False)))


TABLES: dict[str, Callable[[Any], Any]] = {
    "as they were": lambda r: r,
    "sorted": lambda r: r.sort_values("age"),
    "shuffled": lambda r: r.sample(frac=1, random_state=1),
    "read again": again,
    "whole numbers as floats": lambda r: r.astype({"id": float}),
    "single precision": lambda r: r.astype({"age": "float32"}),
    "nullable": lambda r: r.convert_dtypes(),
    "categories": lambda r: r.astype({"sex": "category"}),
    "columns in another order": lambda r: r[["income", "sex", "age", "id"]],
    "a column more": lambda r: r.assign(bmi=np.arange(len(r)) * 1.5),
    "a column less": lambda r: r.drop(columns="sex"),
    "grown by ten": lambda r: _grown(r, 10),
    "less six": lambda r: r.iloc[6:],
    "six corrected": lambda r: r.assign(income=r["income"] + (np.arange(len(r)) < 6)),
    "polars": lambda r: pytest.importorskip("polars").from_pandas(r),
}


def _grown(rows: Any, k: int) -> Any:
    import pandas as pd

    return pd.concat([rows, patients(60, 9).assign(id=np.arange(60) + 5000, age=np.arange(60) / 10 + 96).iloc[:k]])


@pytest.mark.parametrize("name", quick(6, TABLES))
def test_two_questions_that_differ_in_one_patient_are_refused_of_any_table(name: str, tmp_path: Path) -> None:
    rows = patients()
    below, up_to = victim(rows)
    apart = total(rows, tmp_path / "a", below) - total(TABLES["sorted"](rows), tmp_path / "b", up_to)
    assert -apart in rows["income"].to_numpy().round()  # with a register each
    total(rows, tmp_path, below)
    with pytest.raises(BadData, match="withh"):
        total(TABLES[name](rows), tmp_path, up_to)
    assert np.isfinite(total(TABLES[name](rows), tmp_path, "age < 200"))


REFUSED: dict[str, tuple[Callable[[Any], Any], str]] = {
    "one more": (lambda r: _grown(r, 1), "fewer than 5 rows are new"),
    "four more": (lambda r: _grown(r, 4), "fewer than 5 rows are new"),
    "four less": (lambda r: r.iloc[4:], "fewer than 5 rows are gone"),
    "one corrected": (
        lambda r: r.assign(income=r["income"] + (np.arange(len(r)) == 7)),
        "fewer than 5 rows are changed",
    ),
    "ten more, one corrected": (
        lambda r: _grown(r.assign(income=r["income"] + (np.arange(len(r)) == 7)), 10),
        "fewer than 5 rows are changed",
    ),
    "other patients": (lambda r: patients(100, 5), "a register of other rows, not of these 100"),
    "a column less and another": (lambda r: r[["sex"]].assign(x=np.arange(len(r))), "without age, id, income"),
}


@pytest.mark.parametrize(("name", "id"), crossed(REFUSED, ["", "id"]))
def test_tables_that_differ_in_few_rows_are_refused(name: str, id: str, tmp_path: Path) -> None:
    rows, (change, said) = patients(), REFUSED[name]
    total(rows, tmp_path, rules=Rules(id=id))
    if id and name == "other patients":
        other = change(rows).assign(id=np.arange(100) + 9000)
        with pytest.raises(BadData, match="a register of other rows"):
            total(other, tmp_path, rules=Rules(id=id))
        return
    if id and "column less" in name:
        said = "name a column that has a different value in every row"
    with pytest.raises(BadData, match=said):
        total(change(rows), tmp_path, rules=Rules(id=id))
    assert np.isfinite(total(rows, tmp_path, rules=Rules(id=id)))


def test_the_remedy_of_waiting_for_more_rows_gives_nobody_away(tmp_path: Path) -> None:
    """After 1, 2, 3, 4 and then 5 new patients; and a second register is what would give them away."""
    rows = patients()
    total(rows, tmp_path)
    for k in range(1, 5):
        with pytest.raises(BadData, match="wait until at least 5 are new"):
            total(_grown(rows, k), tmp_path)
    assert np.isfinite(total(_grown(rows, 5), tmp_path))
    with pytest.raises(BadData, match="fewer than 5 rows are new"):
        total(_grown(rows, 8), tmp_path)
    alone = total(_grown(rows, 1), tmp_path / "own") - total(rows, tmp_path / "another")
    assert alone == pytest.approx(patients(60, 9)["income"].iloc[0], abs=0.1)


def test_five_corrected_patients_are_not_told_apart_by_groups(tmp_path: Path) -> None:
    """Five patients are corrected, of whom one is a man: the men before and after differ in one patient's value."""
    rows = patients()
    at = np.append(rows.index[rows["sex"] == "F"][:4], rows.index[rows["sex"] == "M"][0])
    new = rows.assign(income=rows["income"] + 1000.0 * np.isin(rows.index, at))
    for rules in (Rules(), Rules(id="id")):
        folder = tmp_path / f"with{rules.id}"
        total(rows, folder, "sex == 'M'", rules)
        assert np.isfinite(total(new, folder, rules=rules))
        with pytest.raises(BadData, match="withh"):
            total(new, folder, "sex == 'M'", rules)


def test_rows_that_are_alike_are_counted(tmp_path: Path) -> None:
    import pandas as pd

    rows = pd.DataFrame({"sex": np.repeat(["F", "M"], [30, 20]), "died": np.repeat([0, 1, 0], [20, 20, 10])})
    total(rows, tmp_path, column="died")
    assert total(rows.sample(frac=1, random_state=0), tmp_path, column="died") == pytest.approx(20)
    with pytest.raises(BadData, match="fewer than 5 rows are gone"):
        total(rows.iloc[1:], tmp_path, column="died")


def test_ids_are_one_a_row(tmp_path: Path) -> None:
    for wrong in ([1] * 100, [np.nan, *range(99)]):
        with pytest.raises(BadData, match=r"Rules\(id='id'\): name a column that has a different value in every row"):
            total(patients().assign(id=wrong), tmp_path, rules=Rules(id="id"))


def test_the_file_is_its_owners_and_has_no_value(tmp_path: Path) -> None:
    total(patients(), tmp_path)
    files = {p.name: p for p in tmp_path.iterdir()}
    assert {*files} == {"Bern.jsonl", "Bern.key", "Bern.lock"}
    if os.name == "posix":
        assert {p.stat().st_mode & 0o777 for p in files.values()} == {0o600}
    text = files["Bern.jsonl"].read_text()
    assert not [v for v in patients()["income"].astype(int).astype(str) if v in text.replace("00", "")][3:]


def test_a_sum_that_cannot_be_recorded_does_not_leave(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for a while: the figure does not leave, and counts for nothing, now or after a restart."""
    import medley.storage.atomic as module

    rows, (below, up_to) = patients(), victim(patients())
    study = Study({"Bern": rows}, registers=tmp_path)
    with study.sites[0].register.reading():
        pass  # its key is on the disk before that is full

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as m:
        m.setattr(module, "flush", full)
        for _ in range(2):
            with pytest.raises(MedleyError, match="No space left on device"):
                study.describe(["income"], where=below)
    assert not study.sites[0].register.sets
    assert total(rows, tmp_path, up_to) > 0
    with pytest.raises(Withheld):
        study.describe(["income"], where=below)


def test_bits_that_cannot_be_recorded_are_not_in_the_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the figure leaves when it is asked for again, and another process does not know its bits."""
    import medley.storage.atomic as module

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    register = Register(patients(), tmp_path / "Bern.jsonl")
    with register.reading():
        pass
    with monkeypatch.context() as m:
        m.setattr(module, "flush", full)
        for write in (lambda: register.spend("income", {"a": 7.0}, 100), lambda: register.note("grid", lambda: 3)):
            with pytest.raises(MedleyError, match="No space left on device"):
                write()
    assert not register.notes
    assert register.spend("income", {"a": 7.0}, 100)
    other = Register(patients(), tmp_path / "Bern.jsonl")
    with other.reading():
        assert other.spent("income") == 7


def test_a_torn_last_line_is_repaired_and_any_other_damage_refused(tmp_path: Path) -> None:
    rows, (below, up_to) = patients(), victim(patients())
    total(rows, tmp_path, below)
    file = tmp_path / "Bern.jsonl"
    good = file.read_bytes()
    file.write_bytes(good + b'["income", "ff')
    assert total(rows, tmp_path, below) > 0
    assert file.read_bytes() == good + b'["income", "ff'  # the same question writes nothing
    assert total(rows, tmp_path, "age < 200") > 0
    assert [json.loads(line) for line in file.read_bytes().splitlines()]
    lines = good.splitlines(keepends=True)
    damaged = [
        lines[0] + b"{}\n" + lines[1],
        *(b"".join([*lines[:k], lines[k][: len(lines[k]) // 2], b"\n", *lines[k + 1 :]]) for k in range(len(lines))),
    ]
    damaged += [
        b"".join(lines[1:]),
        b"\xff\xfe\n" + good,
        b"[]\n",
        b"7\n",
        b'["rows of", "00"]\n',
        good.replace(b'"table": "', b'"table": "f'),
    ]
    for text in damaged:
        file.write_bytes(text)
        with pytest.raises(BadData, match=r"Bern\.jsonl: (line \d+ is damaged|these rows cannot)"):
            total(rows, tmp_path, up_to)
    file.write_bytes(good)
    (tmp_path / "Bern.key").rename(tmp_path / "gone")
    with pytest.raises(BadData, match="key is missing"):
        total(rows, tmp_path, up_to)
    (tmp_path / "Bern.key").write_text("ab")
    with pytest.raises(BadData, match=r"Bern\.key is damaged"):
        total(rows, tmp_path, up_to)
    (tmp_path / "Bern.key").write_text("ab" * 32)
    with pytest.raises(BadData, match="line 1 is damaged, or of another key"):
        total(rows, tmp_path, up_to)
    (tmp_path / "gone").replace(tmp_path / "Bern.key")
    with pytest.raises(Withheld):
        total(rows, tmp_path, up_to)


def test_a_register_that_is_cut_while_it_is_used_is_refused(tmp_path: Path) -> None:
    study = Study({"Bern": patients()}, registers=tmp_path)
    study.describe(["income"])
    (tmp_path / "Bern.jsonl").write_bytes(b"")
    with pytest.raises(BadData, match="shorter than it was"):
        study.describe(["age"])


@pytest.mark.skipif(os.name != "posix", reason="links")
@pytest.mark.parametrize("name", ["Bern.jsonl", "Bern.key", "Bern.lock"])
def test_links_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "elsewhere").write_text("")
    (tmp_path / "r" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BadData, match=f"{name} is a link"):
        total(patients(), tmp_path / "r")
    assert (tmp_path / "elsewhere").read_text() == ""


@pytest.mark.parametrize("name", ["../x", "/etc/x", "..", ".", "a/b", "a\\b", "Zürich", "a\0b", ".hidden", "", "a\nb"])
def test_a_name_does_not_leave_the_folder(name: str, tmp_path: Path) -> None:
    path = file_of(tmp_path, name)
    assert path.parent == tmp_path
    assert path.resolve().parent == tmp_path.resolve()
    assert path != file_of(tmp_path, name + "x")
    if name:  # a study has sites with names alone
        Study({name: patients()}, registers=tmp_path).describe(["income"])
        assert path.exists()


def test_processes_share_a_register(tmp_path: Path) -> None:
    """Studies in turns, as of several workers: each knows what the others have told."""
    rows, turn = patients(), itertools.cycle([1, 2, 3])
    studies = [Study({"Bern": TABLES["shuffled"](rows)}, registers=tmp_path) for _ in range(3)]
    ages = np.sort(rows["age"])
    assert studies[0].describe(["income"], where=f"age < {ages[50]}").cells["income"][""].n == 50
    for k in range(51, 55):
        with pytest.raises(Withheld):
            studies[next(turn) % 3].describe(["income"], where=f"age < {ages[k]}")
    assert studies[1].describe(["income"], where=f"age < {ages[55]}").cells["income"][""].n == 55
    with pytest.raises(Withheld):
        studies[2].describe(["income"], where=f"age < {ages[58]}")


def test_cells_are_the_same_after_a_file_was_read_again() -> None:
    import pandas as pd

    day = pd.Timestamp("2020-01-01")
    for alike in (
        (5, 5.0, "5", np.int8(5), True + 4),
        (0.1, "0.1"),
        (None, np.nan, pd.NA, pd.NaT, ""),
        (day, "2020-01-01"),
    ):
        assert len({plain(v) for v in alike}) == 1, alike
    for unlike in (
        (1, 2),
        (0.1, 0.1 + 1e-12),
        ("a", "A"),
        (2**60, 2**60 + 1),
        ("12345678901234567", "12345678901234568"),
    ):
        assert len({plain(v) for v in unlike}) == 2, unlike


def test_a_register_is_used_alone_too(tmp_path: Path) -> None:
    r = Register(patients(), tmp_path / "a.jsonl")
    assert r.admit("pay", [np.arange(100) < 60], 5)
    other = Register(patients().iloc[::-1], tmp_path / "a.jsonl")
    assert not other.admit("pay", [np.arange(100) >= 41], 5)
    assert other.admit("age", [np.arange(100) >= 41], 5)
    assert other.note("scale", lambda: 3) == r.note("scale", lambda: 4) == 3


@pytest.mark.rounded
@pytest.mark.slow
def test_random_questions_to_changing_tables_tell_of_nobody() -> None:
    """The short form of `make soak`'s 200 sequences."""
    path = Path(__file__).parents[2] / "benchmarks" / "differencing.py"
    spec = importlib.util.spec_from_file_location("differencing", path)
    assert spec is not None
    assert spec.loader is not None
    differencing = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(differencing)
    made = [differencing.sequence(seed) for seed in range(6)]
    assert not any(leak for _, leak in made)
    assert sum(counts["answered"] for counts, _ in made) > 15


@pytest.mark.parametrize("name", ["bern", "Be rn", "BERN ", "Ｂern", "Inselspital"])
def test_another_name_does_not_begin_another_register(name: str, tmp_path: Path) -> None:
    rows = patients()
    total(rows, tmp_path)
    with pytest.raises(BadData, match="name the site 'Bern', as then"):
        Study({name: TABLES["shuffled"](rows)}, registers=tmp_path).describe(["income"])
    other = {"Chur": patients(60, 5)}  # other patients have their own
    assert Study(other, registers=tmp_path).describe(["income"]).cells["income"][""].n == 60


def test_categories_alone_do_not_make_patients_the_same(tmp_path: Path) -> None:
    few = {name: patients(60, seed)[["sex"]] for seed, name in enumerate(("Bern", "Chur"))}
    assert Study(few, registers=tmp_path).describe(["C(sex)"]).cells["sex"][""].n == 120


def _hospital(kind: str, n: int, seed: int) -> Any:
    import pandas as pd

    g = np.random.default_rng(seed)
    frame = pd.DataFrame({"age": g.normal(60, 10, n).round(1), "sex": g.choice(["F", "M"], n)})
    if kind == "categories":  # most columns have few values, so that other patients are alike in most
        return frame.assign(
            ward=g.choice(["a", "b", "c"], n), stay=g.exponential(5, n).round(1), died=g.integers(0, 2, n)
        )
    if kind == "flags":  # columns that depend on each other
        z = g.normal(size=n)
        return frame.assign(**{f"f{k}": (1.5 * z + g.normal(size=n) > 0) * 1 for k in range(10)})
    return frame.assign(**{f"x{k}": g.normal(size=n).round(2) for k in range(4)})


@pytest.mark.parametrize("kind", ["categories", "flags", "numbers"])
def test_hospitals_with_other_patients_share_a_folder(kind: str, tmp_path: Path) -> None:
    sizes = (120, 120, 30, 300, 4, 1)
    sites = {f"H{k}": _hospital(kind, n, k) for k, n in enumerate(sizes)}
    rules = Rules(rows=1, events=1)
    for _ in range(2):  # the second study has the same registers
        assert Study(sites, rules=rules, registers=tmp_path).describe(["age"]).cells["age"][""].n == sum(sizes)


@pytest.mark.parametrize("kind", ["categories", "flags", "numbers"])
def test_a_second_register_of_most_of_the_patients_is_refused(kind: str, tmp_path: Path) -> None:
    import pandas as pd

    rows = _hospital(kind, 120, 1)
    Study({"Bern": rows}, registers=tmp_path).describe(["age"])
    for again in (
        rows.sample(frac=1, random_state=0),
        rows.iloc[:30],
        pd.concat([rows, _hospital(kind, 60, 2)]),
        pd.concat([rows.iloc[:70], _hospital(kind, 50, 2)]),
        rows.drop(columns="age").assign(bmi=np.arange(120)),
        rows.assign(age=rows["age"] + (np.arange(120) < 40)),
    ):
        with pytest.raises(BadData, match="name the site 'Bern', as then"):
            Study({"Chur": again}, registers=tmp_path).describe(["sex"])


def test_the_remedy_for_ids_that_two_sites_use_is_sufficient(tmp_path: Path) -> None:
    rules = Rules(id="id")
    sites = {name: patients(60, seed) for seed, name in enumerate(("Bern", "Chur"))}
    with pytest.raises(BadData, match="if they are other patients, give them id that no patient of 'Bern' has"):
        Study(sites, rules=rules, registers=tmp_path / "a").describe(["income"])
    sites["Chur"] = sites["Chur"].assign(id="Chur " + sites["Chur"]["id"].astype(str))
    assert Study(sites, rules=rules, registers=tmp_path / "b").describe(["income"]).cells["income"][""].n == 120


def test_copies_of_rows_are_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    import pandas as pd

    rows = patients()
    Study({"Bern": rows, "Chur": rows[["sex"]]}).describe(["C(sex)"])
    assert "copies" not in caplog.text
    Study({"Bern": pd.concat([rows, rows.iloc[:8]])}).describe(["C(sex)"])
    assert "Bern: 8 rows are copies of others in all columns, and chance makes about 0" in caplog.text
