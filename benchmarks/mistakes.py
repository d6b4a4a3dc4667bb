"""Mistakes of beginners, who come from scikit-learn, PyTorch, Flower and pandas: Medley's messages, and their remedies.

    python benchmarks/mistakes.py            # follows every remedy; a mistake without one that works fails
    python benchmarks/mistakes.py --write    # also writes the messages into benchmarks/mistakes.json

`mistakes.toml` has each mistake, a line of Python or a command, with a part of the message that names the cause, a part
that is the remedy, and the line of somebody who follows it. The mistake must raise an error with both parts, or print
them and exit with 2; what follows the remedy must work.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shlex
import tempfile
import tomllib
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn
from typer.testing import CliRunner

import medley as md
from medley import cli

TABLE = Path(__file__).resolve().with_suffix(".json")


class Mistake(NamedTuple):
    """A mistake, two parts of its message, and the line that follows the second."""

    wrong: str
    cause: str
    remedy: str
    right: str


MISTAKES = {
    kind: [Mistake(**texts) for texts in tables]
    for kind, tables in tomllib.loads(Path(__file__).with_suffix(".toml").read_text()).items()
}
"""The mistakes in Python and at the shell."""

RECIPE = """
[problem]
kind = "Logistic"
mu = 0.1
[data]
kind = "csv"
path = "plain.csv"
target = "cured"
client = "site"
standardise = true
[partition]
kind = "ByKey"
key = "site"
[run]
rounds = 2
[[methods]]
kind = "FedAvg"
"""

STUDY = """
[[study]]
kind = "glm"
formula = "dose ~ age"
"""

RECIPES = {
    "my.toml": RECIPE,
    "study.toml": STUDY,
    "lr.toml": RECIPE + '[pace]\nlr = "0.1"\n',
    "pace.toml": RECIPE + "[pace]\nlearning_rate = 0.1\n",
    "rate.toml": RECIPE + "[pace]\nlr = 0.1\n",
    "kind.toml": RECIPE.replace('"Logistic"', '"LogisticRegression"'),
    "method.toml": RECIPE.replace('"FedAvg"', '"FedAverage"'),
    "none.toml": RECIPE.partition("[[methods]]")[0],
    "one.toml": RECIPE.replace("[[methods]]", "[methods]"),
    "quotes.toml": RECIPE.replace('"FedAvg"', "FedAvg"),
    "comma.toml": RECIPE.replace("0.1", "0,1"),
    "colon.toml": RECIPE.replace("mu = 0.1", "mu: 0.1"),
    "twice.toml": RECIPE + "[run]\nseed = 1\n",
    "table.toml": RECIPE.replace("[run]", "[training]"),
    "path.toml": RECIPE.replace("plain.csv", "plan.csv"),
    "target.toml": RECIPE.replace('"cured"', '"outcome"'),
    "ward.toml": RECIPE.replace('"plain.csv"', '"visits.csv"\nkeys = ["day"]'),
    "prepared.toml": RECIPE.replace('"plain.csv"', '"visits.csv"\nprepared = "prepared.json"'),
    "metric.toml": RECIPE.replace("rounds = 2", 'rounds = 2\nmetrics = ["auc"]'),
    "empty.toml": "",
    "formula.toml": STUDY.replace("age", "agee"),
    "ols.toml": STUDY.replace('"glm"', '"ols"'),
    "tune.toml": RECIPE.replace('client = "site"', 'client = "site"\nvalidation = 0.2')
    + "[tune]\nrounds = 1\ngrid = { lr = [0.3, 1] }\n",
}


def fill(folder: Path) -> dict[str, Any]:
    """Write the files that the mistakes name, and return the names that lines of Python use."""
    g = np.random.default_rng(0)
    X = g.normal(size=(60, 4))
    y = (X[:, 0] + 0.3 * g.normal(size=60) > 0).astype(int)
    visits = pd.DataFrame(
        {
            "age": (9 * X[:, 0] + 60).round(1),
            "dose": X[:, 1].round(3),
            "ward": np.where(X[:, 2] > 0, "icu", "day"),
            "site": np.repeat(["A", "B"], 30),
            "day": pd.date_range("2024-01-01", periods=60),
            "cured": np.where(y == 1, "yes", "no"),
        }
    )
    plain = visits.drop(columns=["ward", "day"])
    visits.to_csv(folder / "visits.csv", index=False)
    plain.to_csv(folder / "plain.csv", index=False)
    plain.to_csv(folder / "semicolons.csv", index=False, sep=";")
    plain[["age", "dose"]].to_csv(folder / "new.csv", index=False)
    for site, rows in visits.groupby("site"):
        rows.drop(columns="site").to_csv(folder / f"{site}.csv", index=False)
    (folder / "picture.csv").write_bytes(b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR")
    (folder / "book.csv").write_bytes(b"PK\x03\x04" + bytes(99))
    for name, text in RECIPES.items():
        (folder / name).write_text(text)
    clients = [(X[:30], y[:30]), (X[30:], y[30:])]
    fed = md.Federation(md.problems.Logistic(mu=0.1), clients=clients)
    return {
        "md": md, "np": np, "pd": pd, "nn": nn, "torch": torch, "X": X, "y": y, "visits": visits, "fed": fed,
        "texts": np.array(["well", "ill", "unknown"] * 20),
        "tested": md.Federation(md.problems.Logistic(mu=0.1), clients=clients, test=(X, y)),
        "validated": md.Federation(md.problems.Logistic(mu=0.1), clients=clients, validation=0.2),
        "result": md.run(md.FedAvg(), fed, 1, progress=False),
        "study": md.statistics.Study({site: rows for site, rows in visits.groupby("site")}),
    }  # fmt: skip


def medley(command: str) -> tuple[int, str]:
    """The exit code of a command, and all that it prints; the code of an error that is no message is -1."""
    outcome = CliRunner().invoke(cli.app, shlex.split(command), env={"COLUMNS": "400"})
    crashed = outcome.exception is not None and not isinstance(outcome.exception, SystemExit)
    return (-1 if crashed else outcome.exit_code), f"{outcome.output}{outcome.exception if crashed else ''}"


def message_of(wrong: str, names: dict[str, Any]) -> str:
    """The message of a line of Python, which must raise."""
    try:
        eval(wrong, dict(names))
    except (md.MedleyError, AttributeError, TypeError) as e:
        return str(e)
    raise AssertionError(f"{wrong}: nothing is wrong with it")


def follow(mistake: Mistake, names: dict[str, Any] | None) -> str:
    """Make a mistake and follow its remedy; returns the message. Raises AssertionError for what does not hold.

    ``names`` are those of `fill` for a line of Python, None for a command.
    """
    if names is not None:
        message = message_of(mistake.wrong, names)
    else:
        code, message = medley(mistake.wrong)
        assert code == 2, f"medley {mistake.wrong}: exit code {code}\n{message}"
    for part in (mistake.cause, mistake.remedy):
        assert part in message, f"{mistake.wrong}: {part!r} is not in {message!r}"
    if names is not None:
        value = eval(mistake.right, dict(names))
        assert not isinstance(value, md.Result) or value.status.ok, f"{mistake.right}: {value.status}"
        return message
    for command in mistake.right.splitlines():
        code, text = medley(command)
        assert code == 0, f"medley {command}: exit code {code}\n{text}"
    return message[message.find("Error: ") :].removeprefix("Error: ").strip()


def begin(folder: Path) -> dict[str, Any]:
    """Work in ``folder``, with its files and a finished run in it; returns `fill`'s names."""
    os.chdir(folder)
    names = fill(folder)
    code, text = medley("run my.toml --save finished")
    assert code == 0, text
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore")
    failures = 0
    messages: dict[str, dict[str, str]] = {kind: {} for kind in MISTAKES}
    with tempfile.TemporaryDirectory() as name:
        names = begin(Path(name))
        for kind, mistakes in MISTAKES.items():
            for mistake in mistakes:
                try:
                    message = follow(mistake, names if kind == "python" else None)
                except Exception as e:
                    failures += 1
                    print(f"{type(e).__name__}: {e}", flush=True)
                    continue
                messages[kind][mistake.wrong] = message.replace(name, "FOLDER")
        os.chdir("/")
    done = [f"{len(messages[kind])} of {len(mistakes)} ({kind})" for kind, mistakes in MISTAKES.items()]
    print(f"the remedies work of {' and '.join(done)}")
    if options.write:
        TABLE.write_text(json.dumps(messages, indent=1) + "\n")
    raise SystemExit(failures > 0)


if __name__ == "__main__":
    main()
