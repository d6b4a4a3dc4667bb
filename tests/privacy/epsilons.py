"""ε by dp-accounting's own accountants, without Medley.

    python tests/privacy/epsilons.py --write      # epsilons.json, with dp-accounting alone installed

Each case is a list of rounds [law, z, number of rounds] and a δ. A law is a Poisson rate, "cyclic/PERIOD", or
"SIZE of CLIENTS" for cohorts of a fixed size. Losses are on a grid of 2e-5, a fifth of the library's default; Rényi's
orders are the library's own.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_suffix(".json")

CASES: list[tuple[list[tuple[float | str, float, int]], float]] = [
    ([(1.0, 0.5, 1)], 1e-5),
    ([(1.0, 1.0, 10)], 1e-6),
    ([(1.0, 4.0, 100)], 1e-5),
    ([(1.0, 30.0, 5_000)], 1e-8),
    ([(0.5, 0.8, 3)], 1e-3),
    ([(0.5, 2.0, 50)], 1e-5),
    ([(0.2, 1.0, 40)], 1e-5),
    ([(0.1, 1.5, 200)], 1e-6),
    ([(0.05, 0.7, 100)], 1e-4),
    ([(0.01, 1.0, 1_000)], 1e-5),
    ([(0.01, 0.6, 300)], 1e-5),
    ([(0.004, 1.1, 6_000)], 1e-5),
    ([(0.001, 1.0, 10_000)], 1e-7),
    ([(0.001, 4.0, 3_000)], 1e-9),
    ([(1.0, 2.0, 5), (1.0, 1.0, 2)], 1e-5),
    ([(0.1, 1.0, 20), (0.1, 2.0, 60), (0.1, 4.0, 200)], 1e-5),
    ([(0.02, 1.2, 500), (0.2, 3.0, 50), (0.5, 8.0, 50)], 1e-6),
    ([("cyclic/10", 1.5, 31)], 1e-5),
    ([("cyclic/4", 2.0, 8), ("cyclic/4", 1.0, 8)], 1e-5),
    ([("10 of 100", 2.0, 100)], 1e-5),
    ([("50 of 50", 4.0, 10)], 1e-6),
    ([("5 of 1000", 1.6, 200), ("5 of 1000", 2.4, 300)], 1e-6),
]


def epsilons(rounds: list[tuple[float | str, float, int]], delta: float) -> dict[str, float]:
    """ε by each accountant that knows the law: "pld", privacy loss distributions, and "rdp", Rényi's divergence."""
    import dp_accounting as dp
    import dp_accounting.pld
    import dp_accounting.rdp

    fixed = " of " in str(rounds[0][0])
    relation = dp.NeighboringRelation.REPLACE_ONE if fixed else dp.NeighboringRelation.ADD_OR_REMOVE_ONE
    accountants: dict[str, Any] = {"rdp": dp.rdp.RdpAccountant(neighboring_relation=relation)}
    if not fixed:
        accountants["pld"] = dp.pld.PLDAccountant(relation, value_discretization_interval=2e-5)
    for law, z, n in rounds:
        if fixed:
            size, clients = map(int, str(law).split(" of "))
            # Replacing one client moves the sum by twice what one adds.
            event, times = dp.SampledWithoutReplacementDpEvent(clients, size, dp.GaussianDpEvent(z / 2)), n
        elif isinstance(law, str):
            # Every cohort comes once in PERIOD rounds; the first has the odd one.
            event, times = dp.GaussianDpEvent(z), -(-n // int(law.removeprefix("cyclic/")))
        else:
            event, times = dp.PoissonSampledDpEvent(law, dp.GaussianDpEvent(z)), n
        for accountant in accountants.values():
            accountant.compose(event, times)
    return {name: float(accountant.get_epsilon(delta)) for name, accountant in accountants.items()}


def main() -> None:
    """Print the values, or write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    found = [{"rounds": rounds, "delta": delta, **epsilons(rounds, delta)} for rounds, delta in CASES]
    lines = ",\n".join(f"  {json.dumps(case)}" for case in found)
    version = importlib.metadata.version("dp-accounting")
    text = f'{{"dp-accounting": "{version}", "cases": [\n{lines}\n]}}\n'
    if parser.parse_args().write:
        FILE.write_text(text)
    else:
        print(text, end="")


if __name__ == "__main__":
    main()
