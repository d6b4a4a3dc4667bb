"""The bugs that `plants.py` plants."""

from __future__ import annotations

from typing import NamedTuple


class Plant(NamedTuple):
    """A bug.

    Attributes:
        name: what is wrong
        file: the file below src/medley
        old: the text there, which occurs once
        new: the text in its place
        tests: the tests of which one must fail
        deployed: whether they need Flower
    """

    name: str
    file: str
    old: str
    new: str
    tests: list[str]
    deployed: bool = False


PRIVATE, ROWS, PEOPLE = (f"tests/privacy/test_{name}.py" for name in ("private", "rows", "people"))
ACCOUNT, SHARES = "tests/privacy/test_accountant.py", "tests/privacy/test_skellam.py"
PROTOCOL, RING, SECURE = (f"tests/secure/test_{name}.py" for name in ("protocol", "ring", "run"))
RULES, ROBUST = "tests/robust/test_rules.py", "tests/robust/test_robust.py"
NODES, NODE_SUMS, APP = (f"tests/flower/test_{name}.py" for name in ("private_nodes", "secure", "flower"))
RECORD = "tests/flower/test_record.py"
STUDY, STUDY_ATTACKS = "tests/statistics/test_rules.py", "tests/statistics/test_attacks.py"

BUDGETS = [
    Plant("a budget of clients exceeded by 5 %", "privacy/private.py",
          "if then > p.epsilon * (1 + 1e-9):", "if then > p.epsilon * 1.05:", [PRIVATE]),
    Plant("a budget of rows exceeded by 5 %", "privacy/rows.py",
          "if after > epsilon * (1 + 1e-9):", "if after > epsilon * 1.05:", [ROWS]),
    Plant("a node's budget exceeded by 5 %", "flower/account.py",
          "> most * (1 + 1e-9):", "> most * 1.05:", [APP], True),
    Plant("noise for a budget that is 5 % larger", "privacy/accountant.py",
          "if spent(middle) > target else", "if spent(middle) > 1.05 * target else", [ACCOUNT, PRIVATE]),
    Plant("a quick look at a budget that is 5 % larger", "privacy/accountant.py",
          "rounds=n)], delta) <= target for", "rounds=n)], delta) <= 1.05 * target for", [ACCOUNT, PRIVATE]),
    Plant("a node that forgets what it spent", "flower/account.py",
          'self._keep(FILE, json.dumps({**kept, "spent": plain, "last": None}))', "del plain", [APP], True),
    Plant("sums of one round counted as the loudest alone", "privacy/accountant.py",
          "return 1 / math.sqrt(total) if total else math.inf", "return min(noises)", [ACCOUNT, PRIVATE]),
    Plant("a cohort of fixed size counted as one that adds or removes", "privacy/accountant.py",
          "dp.GaussianDpEvent(r.noise / 2)", "dp.GaussianDpEvent(r.noise)", [ACCOUNT]),
    Plant("half the rate of a batch in the account", "privacy/rows.py",
          'Sampling("poisson", law.rows, law.rate)', 'Sampling("poisson", law.rows, law.rate / 2)', [ROWS, PEOPLE]),
]  # fmt: skip

NOISE = [
    Plant("an error that leaves the noise out", "privacy/rows.py",
          '            log.exception("the gradient of a private row fails; the row adds nothing to the step")',
          '            log.exception("the row adds nothing to the step")\n'
          '            object.__setattr__(self, "noise", 0.0)', [ROWS, PEOPLE]),
    Plant("an error of one row that leaves all others out", "privacy/rows.py",
          "        for row in torch.split(torch.arange(self.of.n)", "        for row in torch.split(torch.arange(0)",
          [ROWS, PEOPLE]),
    Plant("a batch of nobody without noise", "privacy/rows.py",
          "fresh = self.rng.normal(total.shape).to(x)",
          "fresh = self.rng.normal(total.shape).to(x) * (1.0 if rows is None or len(rows) else 0.0)", [ROWS, PEOPLE]),
    Plant("batches and noise of rows from one stream", "privacy/rows.py",
          'me.secret(f"privacy of rows, {self.by.identity}, {self.exchange}")',
          'me.secret(f"private batches, {self.by.identity}, {self.exchange}")', [ROWS, PEOPLE]),
    Plant("noise from a key of 64 bits", "runtime/streams.py",
          "_digest(seed, name, 32), 0", "_digest(seed, name, 8), 0", [PRIVATE, ROWS, "tests/runtime/test_streams.py"]),
    Plant("a node's noise from 32 bits", "flower/client.py",
          "me.noise_seed = randbits(256)", "me.noise_seed = randbits(32)", [NODES], True),
    Plant("a node's noise from the run's seed", "flower/client.py",
          "me.noise_seed = randbits(256)", "me.noise_seed = None", [NODES], True),
    Plant("a node's share of noise from 32 bits", "flower/sums.py",
          "PCG64DXSM(randbits(128))", "PCG64DXSM(randbits(32))", [NODE_SUMS], True),
    Plant("shares of noise that are enough only if nobody leaves", "secure/ring.py",
          "/ self.stay / 2", "/ len(self.weights) / 2", [SHARES, SECURE]),
    Plant("rounding left out of the account of shares", "privacy/skellam.py",
          "wide = 1 + math.sqrt(d) / (2 * levels)", "wide = 1", [SHARES]),
    Plant("a count of an adaptive bound with the noise of one client", "privacy/private.py",
          "adaptive.count_noise * expected * float", "adaptive.count_noise * float", [PRIVATE]),
    Plant("noise of a sum that forgets the bound", "privacy/private.py",
          "weight * z * scale * self._correlated", "weight * z * self._correlated", [PRIVATE]),
]  # fmt: skip

PEOPLES = [
    Plant("a person's rows bounded one by one", "privacy/rows.py",
          "total = total + float(shortening(g.norm()[None], self.bound)) * g", "total = total + g", [PEOPLE]),
    Plant("rows of people drawn one by one", "privacy/rows.py",
          "(took if people is None else took[people]).nonzero()[:, 0]",
          "(drawn.uniform(self.of.n) < law.rate).nonzero()[:, 0]", [PEOPLE]),
    Plant("people of another client's rows", "federation/clients.py",
          "self.rows.people[self.rows.layout.place(s, i)]", "self.rows.people[: len(objective.y)]", [PEOPLE]),
    Plant("a person at two clients counted once", "federation/people.py",
          "np.flatnonzero(first != last)", "np.flatnonzero(first > last)", [PEOPLE]),
    Plant("people who are not taken as private on a node", "flower/settings.py",
          'part.unit != "client"', 'part.unit == "row"', [NODES], True),
]  # fmt: skip

SEEN = [
    Plant("class counts of private rows", "flower/client.py",
          "tasks=[replace(task, support=[]) for", "tasks=[replace(task) for", [NODES], True),
    Plant("AUROC counts of private rows", "flower/client.py",
          "hidden = is_row_private(method) or ", "hidden = ", [NODES], True),
    Plant("a training loss of private rows", "flower/client.py",
          '(exact, private, "its rows', '(False, private, "its rows', [APP], True),
]  # fmt: skip

SECRETS = [
    Plant("a secure client's seed that is its number", "secure/party.py",
          "self._seed, self._key_seed = secret(), secret()",
          'self._seed, self._key_seed = i.to_bytes(16, "big"), secret()', [PROTOCOL]),
    Plant("a secure client's key that is its number", "secure/party.py",
          "self._seed, self._key_seed = secret(), secret()",
          'self._seed, self._key_seed = secret(), i.to_bytes(16, "big")', [PROTOCOL]),
    Plant("a secure client's channel that is its session", "secure/party.py",
          "self._channel_seed = secret()", 'self._channel_seed = (session + bytes(16))[:16]', [PROTOCOL]),
    Plant("one nonce in both directions of a channel", "secure/crypto.py",
          "AESGCM(key).encrypt(sender.to_bytes(12, \"big\"), text, about)",
          "AESGCM(key).encrypt(bytes(12), text, about)", [PROTOCOL]),
    Plant("one mask of a pair in all sums", "secure/party.py",
          "return session + f\" {min(i, j)} and {max(i, j)}\".encode()",
          "return f\" {min(i, j)} and {max(i, j)}\".encode()", [PROTOCOL]),
    Plant("shares of both kinds of one client", "secure/party.py",
          "if self._given.setdefault(j, kind) != kind or", "if", [PROTOCOL]),
    Plant("a threshold that two halves reach", "secure/party.py",
          "or 2 * threshold <= len(members) or", "or", [PROTOCOL]),
    Plant("a sum that is nearly one client's", "secure/settings.py",
          "others = math.fsum(sorted(w for j, w in weights.items() if j != top)[: least - 1])",
          "others = math.fsum(w for j, w in weights.items() if j != top)", [NODE_SUMS], True),
    Plant("a second masked reply of one sum", "flower/sums.py",
          "if kept.asked[step] != digest:", "if False:", [NODE_SUMS], True),
]  # fmt: skip

ROBUSTS = [
    Plant("liars rounded down", "robust/rule.py", "math.ceil(getattr", "math.floor(getattr", [RULES]),
    Plant("one more neighbour in Krum's score", "robust/krum.py",
          "nearest[:, 1 : len(rows) - f - 1]", "nearest[:, 1 : len(rows) - f]", [RULES]),
    Plant("trust of replies that point the other way", "robust/fltrust.py",
          "trust = cosines.clamp(min=0)", "trust = cosines.abs()", [RULES]),
    Plant("trusted replies at their own length", "robust/fltrust.py",
          "norm0 / norms.clamp(min=tiny)", "torch.ones_like(norms)", [RULES]),
    Plant("replies of unequal weight", "robust/replies.py",
          "if max(w) - min(w) > 1e-9 * max(map(abs, w)):", "if False:", [ROBUST]),
    Plant("fewer liars among those who answered once", "robust/replies.py",
          "of = max(len(asked), len(self.ids)) -", "of = len(asked) -", [ROBUST, RULES]),
    Plant("distances from 0 and not from the median", "robust/rule.py",
          "    centre = median(rows)\n", "    centre = torch.zeros_like(rows[0])\n", [RULES]),
]  # fmt: skip

STUDIES = [
    Plant("one row that dominates a site's sum", "statistics/site.py",
          "for few, share in ((1, DOMINANT), (self.rules.rows - 1, FEW_DOMINANT)):",
          "for few, share in ((self.rules.rows - 1, FEW_DOMINANT),):", [STUDY, STUDY_ATTACKS]),
    Plant("few rows that dominate a site's sum", "statistics/site.py",
          "for few, share in ((1, DOMINANT), (self.rules.rows - 1, FEW_DOMINANT)):",
          "for few, share in ((1, DOMINANT),):", [STUDY, STUDY_ATTACKS]),
    Plant("one row that dominates by its weight", "statistics/site.py",
          "alone = (few[0] > DOMINANT * whole) | (few[-1] > FEW_DOMINANT * whole)",
          "alone = few[-1] > FEW_DOMINANT * whole", [STUDY, STUDY_ATTACKS]),
    Plant("a sum that left without a line in the register", "statistics/site.py",
          "        self.register.add(key, [rows])\n        return True", "        return True", [STUDY, STUDY_ATTACKS]),
    Plant("rows without the event that nobody counts", "statistics/site.py",
          'for there, said in ((event, "with"), (~event, "without")):', 'for there, said in ((event, "with"),):',
          [STUDY, STUDY_ATTACKS]),
    Plant("combinations of two sets alone", "statistics/rules.py",
          "return not recoverable([*self.told(key).values(), *sets], least)",
          "return not any(recoverable([s, *sets], least) for s in [*self.told(key).values(), *sets])",
          [STUDY, STUDY_ATTACKS]),
]  # fmt: skip

RECORDS = [
    Plant("a record whose lines may be moved", "flower/record.py",
          'or line["before"] != before:', "or False:", [RECORD], True),
    Plant("a line of the record without a signature", "flower/record.py",
          "if public is not None:\n", 'if public is not None and "signature" in line:\n', [RECORD], True),
    Plant("a record that all users of the machine read", "flower/record.py",
          "os.chmod(self.path, 0o600)", "os.chmod(self.path, 0o644)", [RECORD], True),
    Plant("an answer before its line is on the disk", "flower/record.py",
          "            flush(file.fileno())\n", "", [RECORD], True),
]  # fmt: skip

PLANTS = [*BUDGETS, *NOISE, *PEOPLES, *SEEN, *SECRETS, *ROBUSTS, *STUDIES, *RECORDS]
