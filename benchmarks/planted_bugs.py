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
TREES = "tests/privacy/test_trees.py"
ACCOUNT, SHARES = "tests/privacy/test_accountant.py", "tests/privacy/test_skellam.py"
PROTOCOL, RING, SECURE = (f"tests/secure/test_{name}.py" for name in ("protocol", "ring", "run"))
RULES, ROBUST = "tests/robust/test_rules.py", "tests/robust/test_robust.py"
NODES, NODE_SUMS, APP = (f"tests/deploy/test_{name}.py" for name in ("private_nodes", "secure", "flower"))
RECORD, CHAIN = "tests/deploy/test_record.py", "tests/deploy/test_record_chain.py"
STUDY, STUDY_ATTACKS = "tests/statistics/test_rules.py", "tests/statistics/test_attacks.py"
DOMINANCE, REGISTER, KNAPSACK = (f"tests/statistics/test_{name}.py" for name in ("dominance", "register", "knapsack"))

BUDGETS = [
    Plant("a budget of clients exceeded by 5 %", "privacy/private.py",
          "if after > p.epsilon * (1 + 1e-9):", "if after > p.epsilon * 1.05:",
          [f"{PRIVATE}::test_a_budget_that_is_a_little_short_of_three_rounds_has_two"]),
    Plant("a budget of rows exceeded by 5 %", "privacy/rows.py",
          "if after > epsilon * (1 + 1e-9):", "if after > epsilon * 1.05:",
          [f"{ROWS}::test_a_budget_of_rows_that_is_a_little_short_of_three_rounds_has_two"]),
    Plant("a node's budget exceeded by 5 %", "deploy/node/account.py",
          "> most * (1 + 1e-9):", "> most * 1.05:",
          [f"{APP}::test_an_account_that_is_a_little_short_of_three_trainings_has_two"], True),
    Plant("noise for a budget that is 5 % larger", "privacy/accountant.py",
          "if spent(middle) > target else", "if spent(middle) > 1.05 * target else",
          [f"{PRIVATE}::test_budget_ends_a_run"]),
    Plant("a quick look at a budget that is 5 % larger", "privacy/accountant.py",
          "rounds=n)], delta) <= target for", "rounds=n)], delta) <= 1.05 * target for",
          [f"{PRIVATE}::test_a_budget_that_is_a_little_short_of_three_rounds_has_two"]),
    Plant("a node that forgets what it spent", "deploy/node/account.py",
          'self._save(FILE, json.dumps({**saved, "spent": plain, "last": None}))', "del plain",
          [f"{APP}::test_private_rows_have_no_exact_loss_and_as_many_trainings_as_the_recipe_has_rounds"], True),
    Plant("sums of one round counted as the loudest alone", "privacy/accountant.py",
          "return 1 / math.sqrt(total) if total else math.inf", "return min(noises)",
          [f"{PRIVATE}::test_history_has_the_account_of_what_was_drawn"]),
    Plant("a cohort of fixed size counted as one that adds or removes", "privacy/accountant.py",
          "dp.GaussianDpEvent(r.noise / 2)", "dp.GaussianDpEvent(r.noise)",
          [f"{ACCOUNT}::test_cohorts_of_fixed_size_cost_more"]),
    Plant("half the rate of a batch in the account", "privacy/rows.py",
          'Sampling("poisson", law.rows, law.rate)', 'Sampling("poisson", law.rows, law.rate / 2)',
          [f"{PEOPLE}::test_the_account_is_that_of_people"]),
]  # fmt: skip

NOISE = [
    Plant("an error that leaves the noise out", "privacy/rows.py",
          '            log.exception("the gradient of a private row fails; the row adds nothing to the step")',
          '            log.exception("the row adds nothing to the step")\n'
          '            object.__setattr__(self, "noise", 0.0)',
          [f"{ROWS}::test_an_error_at_private_rows_is_no_answer_and_has_no_text"]),
    Plant("an error of one row that leaves all others out", "privacy/rows.py",
          "        for row in torch.split(torch.arange(self.of.n)", "        for row in torch.split(torch.arange(0)",
          [f"{PEOPLE}::test_a_row_that_fails_moves_the_sum_by_at_most_the_bound"]),
    Plant("a batch of nobody without noise", "privacy/rows.py",
          "fresh = self.rng.normal(total.shape).to(x)",
          "fresh = self.rng.normal(total.shape).to(x) * (1.0 if rows is None or len(rows) else 0.0)",
          [f"{ROWS}::test_a_batch_of_nobody_has_the_noise_of_any_other"]),
    Plant("batches and noise of rows from one stream", "privacy/rows.py",
          'me.secret(f"privacy of rows, {self.by.identity}, {self.exchange}")',
          'me.secret(f"private batches, {self.by.identity}, {self.exchange}")',
          [f"{ROWS}::test_noise_does_not_come_from_the_stream_of_the_batches"]),
    Plant("noise from a key of 64 bits", "runtime/streams.py",
          "self._key = _digest(seed, name, 32)", "self._key = _digest(seed, name, 8)",
          ["tests/runtime/test_streams.py::test_secret_streams_are_what_the_docstring_says"]),
    Plant("a node's noise from 32 bits", "deploy/node/app.py",
          "me.noise_seed = randbits(256)", "me.noise_seed = randbits(32)",
          [f"{NODES}::test_a_node_draws_the_noise_of_its_rows_from_256_bits"], True),
    Plant("a node's noise from the run's seed", "deploy/node/app.py",
          "me.noise_seed = randbits(256)", "me.noise_seed = None",
          [f"{NODES}::test_a_node_draws_the_noise_of_its_rows_from_256_bits"], True),
    Plant("a node's share of noise from 32 bits", "deploy/node/sums.py",
          "PCG64DXSM(randbits(128))", "PCG64DXSM(randbits(32))",
          [f"{NODE_SUMS}::test_a_node_draws_its_share_of_the_noise_from_128_bits"], True),
    Plant("shares of noise that are enough only if nobody leaves", "secure/ring.py",
          "/ self.stay / 2", "/ len(self.weights) / 2",
          [f"{SHARES}::test_shares_of_those_that_must_stay_are_the_noise_that_is_asked_for"]),
    Plant("rounding left out of the account of shares", "privacy/skellam.py",
          "wide = 1 + math.sqrt(d) / (2 * levels)", "wide = 1",
          [f"{SHARES}::test_gaussian_noise_of_equation_3_bounds_equation_2"]),
    Plant("a count of an adaptive bound with the noise of one client", "privacy/private.py",
          "adaptive.count_noise * expected * float", "adaptive.count_noise * float",
          [f"{PRIVATE}::test_quantile_counts_both_sides"]),
    Plant("noise of a sum that forgets the bound", "privacy/private.py",
          "weight * z * scale * self._correlated", "weight * z * self._correlated",
          [f"{PRIVATE}::test_noise_belongs_to_the_sum"]),
]  # fmt: skip

FORESTS = [
    Plant("noise of trees that forgets in how many histograms a row is", "privacy/trees.py",
          " * math.sqrt(method.entered(me.memory, layout))", "",
          [f"{TREES}::test_noise_has_the_standard_deviation_of_the_bound_of_a_row_in_all_columns"]),
    Plant("noise of trees drawn anew for a repeated request", "privacy/trees.py",
          "blake2b(pytree.to_bytes([*messages, reply])).hexdigest()", '__import__("secrets").token_hex()',
          [f"{TREES}::test_a_repeated_request_gets_the_same_noise_and_other_sums_or_requests_get_another"]),
    Plant("one noise of trees for two sums", "privacy/trees.py",
          "pytree.to_bytes([*messages, reply])", "pytree.to_bytes([*messages])",
          [f"{TREES}::test_a_repeated_request_gets_the_same_noise_and_other_sums_or_requests_get_another"]),
    Plant("rows of trees that are not bounded", "privacy/trees.py",
          "np.where(np.isfinite(norms), v * share, 0)", "np.where(np.isfinite(norms), v, 0)",
          [f"{TREES}::test_a_row_moves_all_sums_together_by_at_most_the_bound"]),
    Plant("levels of a tree counted as one sum", "privacy/rows.py",
          "law, steps = trees.law(law.rows, self._depth), 1",
          'law, steps = trees.law(law.rows, self._depth), int(method.__name__ == "begin")',
          [f"{TREES}::test_epsilon_is_that_of_all_sums_of_all_levels_and_trees"]),
    Plant("a node that counts a sum of a tree as a whole tree", "deploy/node/account.py",
          "part.released(part.law(me.pace, me.problem))", "part.released(part.law(me.pace, me.problem), request=False)",
          ["tests/deploy/test_private_trees.py"
           "::test_nodes_draw_the_noise_of_trees_themselves_and_count_a_sum_for_each_level"], True),
]  # fmt: skip

PEOPLES = [
    Plant("a person's rows bounded one by one", "privacy/rows.py",
          "total = total + float(shortening(g.norm()[None], self.bound)) * g", "total = total + g",
          [f"{PEOPLE}::test_people_are_bounded_with_all_their_rows"]),
    Plant("rows of people drawn one by one", "privacy/rows.py",
          "(chosen if people is None else chosen[people]).nonzero()[:, 0]",
          "(stream.uniform(self.of.n) < law.rate).nonzero()[:, 0]",
          [f"{PEOPLE}::test_batches_are_of_people"]),
    Plant("people of another client's rows", "federation/clients.py",
          "self.rows.people[self.rows.layout.place(s, i)]", "self.rows.people[: len(objective.y)]",
          [f"{PEOPLE}::test_each_client_has_the_people_of_its_own_rows"]),
    Plant("spellings of a person's name counted as people", "federation/people.py",
          "np.array([_person(v) for v in spellings.tolist()])[which]", "np.char.strip(spellings)[which]",
          [f"{PEOPLE}::test_spellings_of_a_name_are_one_person"]),
    Plant("a person at two clients counted once", "federation/people.py",
          "np.flatnonzero(first != last)", "np.flatnonzero(first > last)",
          [f"{PEOPLE}::test_people_that_are_not_known"]),
    Plant("people who are not taken as private on a node", "deploy/protocol/agreement.py",
          'part.unit != "client"', 'part.unit == "row"',
          [f"{NODES}::test_a_node_with_private_rows_sends_no_counts_of_them"], True),
]  # fmt: skip

SEEN = [
    Plant("class counts of private rows", "deploy/node/app.py",
          "tasks=[replace(task, support=[]) for", "tasks=[replace(task) for",
          [f"{NODES}::test_a_node_with_private_rows_sends_no_counts_of_them"], True),
    Plant("AUROC counts of private rows", "deploy/node/app.py",
          "hidden = is_row_private(method) or ", "hidden = ",
          [f"{NODES}::test_a_node_with_private_rows_sends_no_counts_of_them"], True),
    Plant("a training loss of private rows", "deploy/node/app.py",
          '(request.loss, private, "its rows', '(False, private, "its rows',
          [f"{APP}::test_private_rows_have_no_exact_loss_and_as_many_trainings_as_the_recipe_has_rounds"], True),
]  # fmt: skip

SECRETS = [
    Plant("a secure client's seed that is its number", "secure/party.py",
          "self._seed = secret()", 'self._seed = i.to_bytes(16, "big")',
          [f"{PROTOCOL}::test_the_secrets_of_a_client_are_its_own_and_of_one_sum"]),
    Plant("a secure client's key that is its number", "secure/party.py",
          "self._key_seed = secret()", 'self._key_seed = i.to_bytes(16, "big")',
          [f"{PROTOCOL}::test_the_secrets_of_a_client_are_its_own_and_of_one_sum"]),
    Plant("a secure client's channel that is its session", "secure/party.py",
          "self._channel_seed = secret()", 'self._channel_seed = (session + bytes(16))[:16]',
          [f"{PROTOCOL}::test_the_secrets_of_a_client_are_its_own_and_of_one_sum"]),
    Plant("one nonce in both directions of a channel", "secure/crypto.py",
          "AESGCM(key).encrypt(sender.to_bytes(12, \"big\"), text, purpose)",
          "AESGCM(key).encrypt(bytes(12), text, purpose)",
          [f"{PROTOCOL}::test_the_sum_is_exact_whoever_leaves_up_to_the_threshold"]),
    Plant("one mask of a pair in all sums", "secure/party.py",
          "return session + f\" {min(i, j)} and {max(i, j)}\".encode()",
          "return f\" {min(i, j)} and {max(i, j)}\".encode()",
          [f"{PROTOCOL}::test_each_pair_of_clients_has_masks_of_its_own"]),
    Plant("shares of both kinds of one client", "secure/party.py",
          "if self._released.setdefault(j, kind) != kind or", "if",
          [f"{PROTOCOL}::test_a_client_refuses_to_give_shares_of_both_kinds"]),
    Plant("a threshold that two halves reach", "secure/party.py",
          "or 2 * threshold <= len(members) or", "or",
          [f"{PROTOCOL}::test_a_client_refuses_a_threshold_that_is_no_majority_and_keys_that_are_repeated"]),
    Plant("a sum that is nearly one client's", "secure/settings.py",
          "others = math.fsum(sorted(w for j, w in weights.items() if j != top)[: least - 1])",
          "others = math.fsum(w for j, w in weights.items() if j != top)",
          [f"{NODE_SUMS}::test_weights_that_single_out_a_client_are_refused"], True),
    Plant("a second masked reply of one sum", "deploy/node/sums.py",
          "if saved.asked[step] != digest:", "if False:",
          [f"{NODE_SUMS}::test_a_client_trains_once_a_sum_on_the_model_that_all_are_sent"], True),
]  # fmt: skip

ROBUSTS = [
    Plant("liars rounded down", "robust/rule.py", "math.ceil(getattr", "math.floor(getattr",
          [f"{RULES}::test_the_number_of_liars_is_rounded_up_but_not_by_a_rounding_error"]),
    Plant("one more neighbour in Krum's score", "robust/krum.py",
          "nearest[:, 1 : len(rows) - f - 1]", "nearest[:, 1 : len(rows) - f]",
          [f"{RULES}::test_folds_are_those_of_byzfl"]),
    Plant("trust of replies that point the other way", "robust/fltrust.py",
          "trust = cosines.clamp(min=0)", "trust = cosines.abs()",
          [f"{RULES}::test_fltrust_by_hand"]),
    Plant("trusted replies at their own length", "robust/fltrust.py",
          "norm0 / norms.clamp(min=tiny)", "torch.ones_like(norms)",
          [f"{RULES}::test_fltrust_by_hand"]),
    Plant("replies of unequal weight", "robust/replies.py",
          "if max(w) - min(w) > 1e-9 * max(map(abs, w)):", "if False:",
          [f"{ROBUST}::test_weights_that_differ_are_refused"]),
    Plant("fewer liars among those who answered once", "robust/replies.py",
          "requested = max(len(clients_asked), len(self.ids)) -", "requested = len(clients_asked) -",
          [f"{ROBUST}::test_those_who_are_asked_again_may_be_all_liars_of_the_round"]),
    Plant("distances from 0 and not from the median", "robust/rule.py",
          "    centre = median(rows)\n", "    centre = torch.zeros_like(rows[0])\n",
          [f"{RULES}::test_distances_keep_their_digits_far_from_0"]),
]  # fmt: skip

STUDIES = [
    Plant("one row that dominates a site's sum", "statistics/site.py",
          "for few, share in ((1, DOMINANT), (self.rules.rows - 1, FEW_DOMINANT)):",
          "for few, share in ((self.rules.rows - 1, FEW_DOMINANT),):", [DOMINANCE]),
    Plant("few rows that dominate a site's sum", "statistics/site.py",
          "for few, share in ((1, DOMINANT), (self.rules.rows - 1, FEW_DOMINANT)):",
          "for few, share in ((1, DOMINANT),):", [DOMINANCE]),
    Plant("one row that dominates by its weight", "statistics/site.py",
          "dominated = (few.max(1) > DOMINANT * totals) | (few.sum(1) > FEW_DOMINANT * totals)",
          "dominated = few.sum(1) > FEW_DOMINANT * totals", [DOMINANCE]),
    Plant("rows without the event that nobody counts", "statistics/site.py",
          'for outcome, kind in ((event, "with"), (~event, "without")):', 'for outcome, kind in ((event, "with"),):',
          [DOMINANCE]),
    Plant("sums of a Cox model's events that are not rounded", "statistics/events.py",
          "self.sums = np.column_stack([self.Q, q]), np.append(self.sums, new_sum)",
          "self.sums = np.column_stack([self.Q, q]), np.append(self.sums, at[0])",
          [f"{KNAPSACK}::test_a_lattice_finds_each_outcome_from_exact_sums_and_not_from_rounded_ones"]),
    Plant("mean times of a curve that are not rounded", "statistics/curves.py",
          "coarse = site.rules.rounded", "coarse = False",
          [f"{KNAPSACK}::test_a_lattice_finds_each_outcome_from_exact_sums_and_not_from_rounded_ones"]),
    Plant("each earlier sum looked at by itself", "statistics/register.py",
          "if not self._hides([*(before | sets).values()], least):",
          "if not all(self._hides([s, *sets.values()], least) for s in before.values() or sets.values()):",
          [DOMINANCE]),
    Plant("a sum that left without a line in the register", "statistics/register.py",
          "        self._write([[key, packed.hex()] for packed in new])\n", "",
          [f"{REGISTER}::test_two_questions_that_differ_in_one_patient_are_refused_of_any_table"]),
    Plant("a register that remembers before it writes", "statistics/register.py",
          "        self._write([[key, packed.hex()] for packed in new])\n"
          "        self.sets.setdefault(key, {}).update(new)\n",
          "        self.sets.setdefault(key, {}).update(new)\n"
          "        self._write([[key, packed.hex()] for packed in new])\n",
          [f"{REGISTER}::test_a_sum_that_cannot_be_recorded_does_not_leave"]),
    Plant("bits that are remembered before they are written", "statistics/register.py",
          '            self._write([{"note": key, "value": v} for key, v in new.items()])\n'
          "            self.notes |= new\n",
          "            self.notes |= new\n"
          '            self._write([{"note": key, "value": v} for key, v in new.items()])\n',
          [f"{REGISTER}::test_bits_that_cannot_be_recorded_are_not_in_the_account"]),
    Plant("a condition's rows that its columns do not count", "statistics/site.py",
          "for column in selecting:", "for column in ():",
          [f"{STUDY_ATTACKS}::test_counts_of_one_column_in_two_tables_do_not_tell_how_many_have_both"]),
    Plant("groups that their column does not count", "statistics/describe.py",
          "[(rows, site.may(self.by, rows)) for rows in groups]", "[(rows, True) for rows in groups]",
          [f"{STUDY_ATTACKS}::test_counts_of_one_column_in_two_tables_do_not_tell_how_many_have_both"]),
    Plant("histograms of single rows", "statistics/describe.py",
          "ends(x[present], grid, site.rules.rows)", "ends(x[present], grid, 1)",
          [f"{STUDY_ATTACKS}::test_each_bar_of_a_histogram_has_as_many_rows_as_the_rules_want"]),
    Plant("events that their column does not count", "statistics/site.py",
          "if self.rules.events >= self.rules.rows:", "if False:",
          [f"{STUDY_ATTACKS}::test_counts_of_one_column_in_two_tables_do_not_tell_how_many_have_both"]),
    Plant("an outcome in another code that is not counted", "statistics/rounding.py",
          "integers = in_steps(r.y)", "integers = bool((r.y == np.rint(r.y)).all())",
          [f"{STUDY_ATTACKS}::test_bits_of_a_column_with_two_values_are_counted_in_any_code"]),
]  # fmt: skip

RECORDS = [
    Plant("digests of rows without the secret", "deploy/node/owner.py",
          "digests = {blake2b(row, key=key, digest_size=8)", "digests = {blake2b(row, digest_size=8)",
          ["tests/deploy/test_owner.py::test_who_reads_the_file_of_rows_without_the_secret_finds_no_patient"], True),
    Plant("a record whose lines may be changed", "deploy/node/record.py",
          'or line["before"] != before:', "or False:", [CHAIN], True),
    Plant("a line of the record without a signature", "deploy/node/record.py",
          "if public is not None:\n", 'if public is not None and "signature" in line:\n', [CHAIN], True),
    Plant("an answer before its line is on the disk", "storage/atomic.py",
          "            flush(file.fileno())\n", "", [CHAIN], True),
]  # fmt: skip

PLANTS = [*BUDGETS, *NOISE, *FORESTS, *PEOPLES, *SEEN, *SECRETS, *ROBUSTS, *STUDIES, *RECORDS]
