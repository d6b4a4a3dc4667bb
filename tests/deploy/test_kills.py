"""Each process of a deployment is killed once with SIGKILL. `make soak-deploy` kills more, of more methods."""

from __future__ import annotations

import random
import re
import shutil
from pathlib import Path

import pytest

pytest.importorskip("flwr")

from support.killed import VICTIMS, deployment, ended

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.xdist_group("deployed"),
    pytest.mark.skipif(not all(map(shutil.which, ("openssl", "ssh-keygen"))), reason="needs openssl and ssh-keygen"),
]


def test_a_run_that_is_hit_has_the_digest_of_one_that_is_not(tmp_path: Path) -> None:
    rng = random.Random()
    with deployment(tmp_path / "server", "SCAFFOLD") as there:
        whole = ended(there, "whole")
        assert whole.restarts == 0
        for k, victim in enumerate(VICTIMS):
            done, after = rng.randrange(3), rng.uniform(0, 0.1)  # of four rounds: the run is not yet at its end
            end = ended(there, f"hit{k}", victim, after, done=done)
            when = f"{victim}, {after:.2f} s after round {done}\n{end.log}"
            assert end.killed == 1, when
            assert end.digest == whole.digest, f"{when}\n{whole.log}"
            if victim == "node":
                assert end.restarts == 0, end.log
            else:
                early = "" if done else "|starting again"  # without a whole round there may be no checkpoint yet
                said = (
                    rf"(continuing from the last checkpoint{early}), {3 - end.restarts} more restarts? after this one"
                )
                assert re.search(said, end.log), f"after round {done}\n{end.log}"
