# Every target makes what it needs: .venv/.ready is the one stamp, renewed when the requirements change.
PYTHON ?= python3
BIN := .venv/bin
export OMP_NUM_THREADS ?= 1
# Bytecode is kept: without it each worker compiles Medley and rewrites the assertions of all tests anew.
unexport PYTHONDONTWRITEBYTECODE
# The slowest tests are listed at the end of a run.
SLOWEST := --durations=20 --durations-min=0.5

.PHONY: demo test shapes slow timed check bench soak soak-deploy docs test-deploy test-extras constraints hooks release bounds bounds-short newest coverage \
  wheels licences

demo: .venv/.ready
	$(BIN)/python examples/demo.py

# Two workers: the tests are single-threaded, and each worker pays for importing torch once. Each begins with a half of the
# tests, so that those of one method meet on one worker, and share the run that they compare with. Tests marked `shapes` run
# once, with annotations checked.
test: .venv/.ready
	$(BIN)/pytest -n 2 --dist worksteal -m "not slow and not shapes" $(SLOWEST)
	$(MAKE) --no-print-directory shapes

# Annotations, with the shapes in them, are checked as the code runs: in one pass, since most tests would take twice as long.
# One process reads the files that have such tests: to import everything under the checks takes longer than the tests.
shapes: .venv/.ready
	$(BIN)/pytest --jaxtyping-packages=medley,support.checked -m "shapes and not slow" $$(grep -rl "mark\.shapes" tests --include="test_*.py")

# The slow tests run the commands of README and docs too. Two workers take each other's tests when theirs are done.
slow: .venv/.ready
	$(BIN)/pytest -n 2 --dist worksteal -m "slow and not timed" $(SLOWEST)

# Tests that measure time, each alone; nothing else should run beside them.
timed: .venv/.ready
	$(BIN)/pytest -m "slow and timed" $(SLOWEST)

# The quick tests with lines counted; the floor is `fail_under` in pyproject.toml. A target of its own:
# counting takes 76 % more processor time on Python 3.11. From 3.12 on the interpreter helps.
coverage: .venv/.ready
	core="$$($(BIN)/python -c 'import sys; print("sysmon" if sys.version_info >= (3, 12) else "ctrace")')"; \
	COVERAGE_CORE="$$core" $(BIN)/pytest -n 2 -m "not slow" --cov=medley --cov-report=term:skip-covered $(SLOWEST)

check: .venv/.ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/limits.py
	$(BIN)/python .ci/reading.py

# A table and a picture in build/benchmarks; docs/benchmarks.md says how to read them.
bench: .venv/.ready
	$(BIN)/python benchmarks/run.py

# Runs killed at random moments, two hours of random federations, a hundred thousand mutations of each kind of word, half an
# hour of rounds, of which the slow tests have a short form; and bugs planted in a copy of the source, which tests must catch.
soak: .venv/.ready
	$(BIN)/python benchmarks/soak.py kills --count 100
	$(BIN)/python benchmarks/kills.py --count 200
	$(BIN)/python benchmarks/differential.py --minutes 120
	$(BIN)/python benchmarks/fuzz.py --what all --count 100000
	$(BIN)/python benchmarks/plants.py
	$(BIN)/python benchmarks/differencing.py --times 200
	$(BIN)/python benchmarks/study_rounding.py
	$(BIN)/python benchmarks/meta_coverage.py
	$(BIN)/python benchmarks/effects.py
	$(BIN)/python benchmarks/soak.py memory --on processes --rounds 50000
	if test -f .venv-extras/.ready; then .venv-extras/bin/python benchmarks/studies.py --count 2000 --save benchmarks/studies.jsonl; fi
	if test -f .venv-deploy/.ready; then .venv-deploy/bin/python benchmarks/soak.py memory --on ray --rounds 50000; fi

# Hugging Face's data sets and models with adapters, TensorBoard, a notebook, databases, and statsmodels and lifelines for real,
# in an environment of their own: no other test wants them.
test-extras: .venv-extras/.ready
	.venv-extras/bin/pytest $(SLOWEST) -m "" tests/datasets/test_frames.py tests/datasets/test_sql.py tests/models/test_hugging_face.py \
	  tests/models/test_export.py tests/models/test_loops.py \
	  tests/test_sinks.py tests/test_logs.py tests/test_notebook.py tests/report/test_report_files.py \
	  tests/statistics/test_public.py tests/statistics/test_meta.py tests/benchmarks/test_studies.py \
	  tests/statistics/test_ordinal.py::test_the_figures_are_those_of_statsmodels

.venv-extras/.ready: pyproject.toml constraints.txt
	test -x .venv-extras/bin/python || $(PYTHON) -m venv .venv-extras
	.venv-extras/bin/pip install -q -c constraints.txt torch
	.venv-extras/bin/pip install -q -c constraints.txt -e '.[dev,hub,adapters,onnx,tensorboard,notebook,figures,mlflow,oracles,sql]'
	touch $@

# A node, the server's app or the SuperLink of a deployment killed at 30 random moments, half an hour; a node that is stopped,
# cut off, restarted and restored, and a SuperLink that dies twice, ten minutes; and, for root, models of 49, 198 and 750 MB
# over a link of 100 Mbit/s that is cut once, 25 minutes.
soak-deploy: .venv-deploy/.ready
	.venv-deploy/bin/python benchmarks/deployed_kills.py --count 30 --save benchmarks/sound.json
	.venv-deploy/bin/python benchmarks/hardships.py --save benchmarks/hardships.json
	if test "$$(id -u)" = 0; then for job in "--clients 2 --hidden 3450 --rounds 4" "--clients 1 --hidden 7000 --rounds 3" \
	  "--clients 1 --hidden 13656 --rounds 2"; do \
	  .venv-deploy/bin/python benchmarks/deployment.py $$job --mbit 100 --cut --save benchmarks/links.json || exit 1; done; fi

# Ray and Flower, in an environment of their own: Flower holds typer, rich and packaging back. Tests on Ray share a worker.
test-deploy: .venv-deploy/.ready
	.venv-deploy/bin/pytest -n 2 --dist loadgroup $(SLOWEST) tests/transports/test_ray.py tests/transports/test_ray_nodes.py \
	  tests/deploy tests/conformance/test_transports.py "tests/test_soak.py::test_three_thousand_rounds_leave_memory_flat[ray]"
	.venv-deploy/bin/pytest -n 2 --jaxtyping-packages=medley,support.checked -m shapes tests/deploy

.venv-deploy/.ready: pyproject.toml constraints.txt
	test -x .venv-deploy/bin/python || $(PYTHON) -m venv .venv-deploy
	.venv-deploy/bin/pip install -q -c constraints.txt torch
	grep -vE '^(rich|typer|packaging)==' constraints.txt > .venv-deploy/constraints.txt
	.venv-deploy/bin/pip install -q -c .venv-deploy/constraints.txt -e '.[dev,ray,flower]'
	touch $@

# Wheels of Medley and all that it needs, with hashes, for machines like this one: docs/releasing.md.
EXTRAS ?= flower,secure,privacy,statistics
wheels: .venv/.ready
	.ci/wheels $(EXTRAS)

# The licences of the packages that Medley needs.
licences: .venv/.ready
	@$(BIN)/python .ci/licences.py

# The hooks of .pre-commit-config.yaml, which run what `make check` runs. An extra of its own: Flower holds packaging back,
# which pre-commit's dependencies want newer.
hooks: .venv/.ready
	$(BIN)/pip install -q -c constraints.txt -e '.[hooks]'
	$(BIN)/pre-commit install

# Wheel and sdist, checked, and tried in an empty environment without extras. Nothing is uploaded.
release: .venv/.ready
	PYTHON=$(PYTHON) bash .ci/release

# The declared minimum of every core dependency, in .venv-bounds.
bounds:
	PYTHON=$(PYTHON) bash .ci/bounds

# The same but for torch, and fewer tests: a minute or two, for .ci/run.
bounds-short:
	PYTHON=$(PYTHON) bash .ci/bounds short

# The newest version of every dependency, on each of Python 3.11 to 3.14 that is found, in .venv-newest-3.11 and so on.
newest:
	bash .ci/newest

# All pages in one folder, and the site made of them: a link that leads nowhere is an error.
docs: .venv/.ready
	$(BIN)/python docs/sources.py build/docs
	$(BIN)/sphinx-build -q --fail-on-warning --keep-going -d build/doctrees build/docs site

# Pins whatever .venv holds now. The CPU build of torch carries a local version that an index need not know.
constraints: .venv/.ready
	$(BIN)/pip freeze --exclude-editable | sed 's/+cpu$$//' > constraints.txt
	touch .venv/.ready

# torch first and by itself: its wheel is by far the largest, and a failure there should say so.
.venv/.ready: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -c constraints.txt torch
	$(BIN)/pip install -q -c constraints.txt -e '.[dev,docs]'
	touch $@
