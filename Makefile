# The commands of the project. Needs Python >= 3.11, git and make; every target sets up the environment it uses.

CONFIG ?= estimate_train_time/data/examples/llemma_7b_4_2_2_P.yml
MEASUREMENTS ?= ../shared/measurements
PUBLIC_MEASUREMENTS ?= ../shared/measurements_public
PYTHON ?=

PYTHONS := python3 python3.14 python3.13 python3.12 python3.11

# The stamp is written last, so that an incomplete environment is made again. It carries the folder's checksum, because
# an environment copied with its checkout would still run the original's code.
READY := .ready-$(shell pwd | cksum | cut -d ' ' -f 1)
PREDICT_READY := .venv/predict/$(READY)
TEST_READY := .venv/test/$(READY)
PROFILE_READY := .venv/profile/$(READY)
PREDICT := .venv/predict/bin/python
TEST := .venv/test/bin/python
PROFILE := .venv/profile/bin/python
WORKFLOW_READY := .venv/workflow/$(READY)
WORKFLOW := .venv/workflow/bin/python
JUDGES_READY := .venv/judges/$(READY)
DOCS_READY := .venv/docs/$(READY)
DOCS := .venv/docs/bin/python
# Tests on every core, but no more than four: a further process only collects them once more.
PYTEST := -m pytest --numprocesses auto --maxprocesses 4 --dist worksteal
# Of the unit tests, files with a test that asks for torch or MPI; the others have run without both.
NEED_TORCH = $(shell grep -rlE '(importorskip|find_spec)."(torch|mpi4py)"' --include='test_*.py' tests/unit)
TORCH_TESTS = $(NEED_TORCH) tests/workflow tests/trainer tests/llm_trainer tests/hugectr tests/written tests/faults \
	tests/launch/test_examples.py tests/launch/test_launch_document.py
SMOKE := results/smoke
VERIFY_OUT := results/verify
RECOMMENDER_OUT := results/verify_recommender
TRACES := results/traces
FAULTS_OUT := results/faults
# Survey of a GPU: kit, Python with torch on the GPU machine, minutes, results folders, and whether to replace a system.
GPU_KIT := gpu-kit
GPU_PYTHON := python3
GPU_MINUTES := 9
GPU_OUT := results/survey
GPU_STUDY := results/study
GPU_RESULTS := results/gpu
GPU_SYSTEM := H100
GPU_REPLACE :=
KIT_PYTHONS := 3.11 3.12 3.13 3.14
KIT_MACHINES := x86_64

# The run of README's pictures, and the browser that photographs its report (Debian: apt install chromium).
PICTURED := --model llama3-70b --system H100 --gpus 64 --global-batch-size 24 --tp 8 --pp 4 --micro-batch-size 1 --set sequence_parallel=true
CHROMIUM := chromium
SITE ?= build/site

# Those whose kernels others measured and published.
PUBLIC_SYSTEMS := $(basename $(notdir $(shell grep -l '^    kernel tables:' training/systems/*.yaml)))
# Published systems known from their data sheets.
DATA_SHEET_SOURCES := $(basename $(notdir $(shell grep -l '^  transfer:' training/systems/*.yaml)))
DATA_SHEETS := $(filter-out $(PUBLIC_SYSTEMS), $(filter $(notdir $(wildcard regressors/*)), $(DATA_SHEET_SOURCES)))

# Modules keep their bytecode, whatever the shell says: without it every process compiles what it imports anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help predict lint test check check-profile check-extras judges format mutations bench accuracy fit profile-smoke
.PHONY: test-thorough docs architecture pictures gallery verify verify-recommender verify-gpu traces precisions gpu-kit profile-gpu study-gpu publish-gpu survey-emulated slurm-installed test-slurm test-launch faults clean
.SUFFIXES:

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' Makefile

predict: $(PREDICT_READY) ## predict one training step: CONFIG=path
	$(PREDICT) -m predictor "$(CONFIG)"

lint: $(TEST_READY) ## formatting, lint and types
	$(TEST) -m ruff format --check .
	$(TEST) -m ruff check .
	.venv/test/bin/snakefmt --check Snakefile
	$(TEST) -m mypy

test: lint ## formatting, lint, types and tests
	$(TEST) $(PYTEST)

check: ## all tests: formatting, lint, types, tests without torch and with it, each extra alone; what CI runs
	@$(MAKE) --no-print-directory --jobs 2 lint $(WORKFLOW_READY)
	$(TEST) $(PYTEST)
	@$(MAKE) --no-print-directory check-profile
	@$(MAKE) --no-print-directory check-extras

check-profile: $(WORKFLOW_READY) $(JUDGES_READY) ## tests that need torch, MPI, Snakemake or other frameworks' parsers
	$(WORKFLOW) $(PYTEST) $(TORCH_TESTS)

judges: $(JUDGES_READY) ## parsers of the frameworks whose arguments are written, which judge them: .venv/judges

check-extras: $(TEST_READY) ## each extra alone, with the lowest releases that its bounds allow; with the newest those tested nowhere else: .venv/extras
	EXTRAS_TESTS=1 $(TEST) -m pytest tests/installation

test-thorough: $(TEST_READY) ## what make check tests in part, whole: tables refitted, searches, traces, newest extras
	THOROUGH_TESTS=1 $(TEST) $(PYTEST) -m thorough
	THOROUGH_TESTS=1 EXTRAS_TESTS=1 $(TEST) -m pytest tests/installation

format: $(TEST_READY) ## rewrite the code in the project's format
	$(TEST) -m ruff format .
	$(TEST) -m ruff check --fix .
	.venv/test/bin/snakefmt Snakefile

mutations: $(TEST_READY) ## change the predictor's core in 40 places, one at a time, and name the test that catches each: hours
	$(TEST) -m tests.mutations

bench: $(TEST_READY) $(WORKFLOW_READY) ## how fast predicting, fitting, grids and traces are, how exact measuring is; what the trainer costs
	$(TEST) -m tests.bench
	$(TEST) -m tests.launch.bench_grids
	$(TEST) -m tests.bench_plans
	$(TEST) -m tests.bench_traces
	$(TEST) -m tests.bench_watch
	$(WORKFLOW) -m tests.bench_profile
	$(WORKFLOW) -m tests.bench_trainer
	$(WORKFLOW) -m tests.bench_replay
	$(WORKFLOW) -m tests.llm_trainer.bench_model
	$(WORKFLOW) -m tests.llm_trainer.bench_learning
	$(WORKFLOW) -m tests.hugectr.bench_data
	$(WORKFLOW) -m tests.hugectr.bench_inference
	$(WORKFLOW) -m tests.hugectr.bench_step
	$(WORKFLOW) -m tests.hugectr.bench_learning
	$(WORKFLOW) -m tests.hugectr.bench_plans

accuracy: $(TEST_READY) ## errors on held-out measurements and on whole steps: MEASUREMENTS=folder
	$(TEST) -m fitting held-out training/systems/Perlmutter.yaml "$(MEASUREMENTS)"
	$(TEST) -m fitting held-out training/systems/Vista.yaml "$(MEASUREMENTS)"
	$(TEST) -m fitting transfer-error regressors/Perlmutter regressors/Vista "$(MEASUREMENTS)"
	$(TEST) -m tests.accuracy.report
	$(TEST) -m tests.accuracy.calibrated_groups
	$(TEST) -m tests.accuracy.best_layouts
	$(TEST) -m tests.accuracy.goodput
	$(TEST) -m tests.accuracy.fault_trace

fit: $(TEST_READY) ## fit and publish all systems again, but no data sheet over a measured one: MEASUREMENTS=folder PUBLIC_MEASUREMENTS=folder
	$(TEST) -m fitting fit --system training/systems/Perlmutter.yaml --measurements "$(MEASUREMENTS)" --out regressors/Perlmutter
	$(TEST) -m fitting fit --system training/systems/Vista.yaml --measurements "$(MEASUREMENTS)" --out regressors/Vista --donor regressors/Perlmutter
	$(TEST) -m fitting transfer-error regressors/Perlmutter regressors/Vista "$(MEASUREMENTS)" --out regressors/transfer_error.json
	for name in $(PUBLIC_SYSTEMS); do $(TEST) -m fitting fit --system training/systems/$$name.yaml --measurements "$(PUBLIC_MEASUREMENTS)" --out regressors/$$name || exit 1; done
	for name in $(DATA_SHEETS); do $(TEST) -m fitting datasheet --system training/systems/$$name.yaml --out regressors/$$name || exit 1; done

profile-smoke: $(PROFILE_READY) ## measure this CPU in minutes, fit it, and predict a small model on it
	$(PROFILE) -m microbench system --device cpu --name smoke --out $(SMOKE)
	$(PROFILE) -m microbench operator all --sweep smoke --device cpu --out $(SMOKE)
	$(PROFILE) -m microbench collective all --sweep smoke --backend mpi --out $(SMOKE)
	$(PROFILE) -m fitting fit --system $(SMOKE)/system.yaml --measurements $(SMOKE) --out $(SMOKE)/published
	$(PROFILE) -m fitting held-out $(SMOKE)/system.yaml $(SMOKE)
	$(PROFILE) -m predictor profiling/smoke_model.yml

verify: $(WORKFLOW_READY) ## measure this CPU, predict 20 small training runs on it, run them, and compare: VERIFY_OUT=folder
	$(WORKFLOW) -m microbench system --device cpu --name verify --out $(VERIFY_OUT)
	$(WORKFLOW) -m microbench operator all --sweep smoke --device cpu --out $(VERIFY_OUT)
	$(WORKFLOW) -m microbench collective all --sweep verify --backend gloo --out $(VERIFY_OUT)
	$(WORKFLOW) -m fitting fit --system $(VERIFY_OUT)/system.yaml --measurements $(VERIFY_OUT) --out $(VERIFY_OUT)/published
	$(WORKFLOW) -m predictor verify profiling/verify --system $(VERIFY_OUT)/published --out $(VERIFY_OUT)/runs \
		--device cpu --steps 8 --report $(VERIFY_OUT)/report.html

verify-recommender: $(WORKFLOW_READY) ## measure this CPU, predict 8 small recommenders on it, train them, and compare: RECOMMENDER_OUT=folder
	$(WORKFLOW) -m microbench system --device cpu --name verify --out $(RECOMMENDER_OUT)
	$(WORKFLOW) -m microbench operator all --sweep recommender --device cpu --out $(RECOMMENDER_OUT)
	$(WORKFLOW) -m microbench collective all --sweep between --backend gloo --out $(RECOMMENDER_OUT)
	$(WORKFLOW) -m fitting fit --system $(RECOMMENDER_OUT)/system.yaml --measurements $(RECOMMENDER_OUT) --out $(RECOMMENDER_OUT)/published
	$(WORKFLOW) -m predictor verify profiling/verify_recommender --system $(RECOMMENDER_OUT)/published --out $(RECOMMENDER_OUT)/runs \
		--device cpu --steps 20 --report $(RECOMMENDER_OUT)/report.html

traces: $(WORKFLOW_READY) ## record the sample traces of four models again, whole ones: TRACES=folder
	PYTHON="$(CURDIR)/$(WORKFLOW)" bash predictor/replay/record_samples.sh "$(TRACES)"

gallery: $(TEST_READY) ## run the commands of docs/gallery.md, docs/troubleshooting.md and README.md again, and write their outputs
	$(TEST) -m tests.gallery

pictures: $(TEST_READY) ## draw README's pictures again; needs Debian's chromium, or CHROMIUM=browser
	@mkdir -p results/pictures
	$(TEST) -m predictor timeline $(PICTURED) --svg docs/pictures/timeline.svg
	$(TEST) -m predictor report $(PICTURED) --search --out results/pictures/report.html
	"$(CHROMIUM)" --headless $(if $(filter 0,$(shell id -u)),--no-sandbox) --hide-scrollbars --window-size=1100,1160 \
		--screenshot=docs/pictures/report.png "file://$(CURDIR)/results/pictures/report.html"

architecture: $(TEST_READY) ## draw the packages and their imports again: docs/architecture.md and its pictures
	$(TEST) -m tests.architecture

docs: $(DOCS_READY) ## build the documents as a site with search, in build/site: SITE=folder
	NO_MKDOCS_2_WARNING=1 $(DOCS) -m mkdocs build --strict --site-dir "$(CURDIR)/$(SITE)"

precisions: $(WORKFLOW_READY) ## predict four models in another precision from one trace each, and trace them in it
	$(WORKFLOW) -m microbench compare-precisions --device cpu --out results/precisions

verify-gpu: $(WORKFLOW_READY) ## predict 8 training runs on this machine's GPU, run them, and compare: GPU_SYSTEM=published system
	$(WORKFLOW) -m predictor verify profiling/verify_gpu --system "$(GPU_SYSTEM)" --out results/verify_gpu \
		--device cuda --report results/verify_gpu/report.html

gpu-kit: $(TEST_READY) ## build the kit for a GPU machine without a network: KIT_PYTHONS, KIT_MACHINES
	$(TEST) -m microbench kit --out $(GPU_KIT) --python $(KIT_PYTHONS) --machine $(KIT_MACHINES) --earlier $(GPU_RESULTS)

profile-gpu: ## measure this machine's GPU with the kit: GPU_PYTHON has torch, GPU_MINUTES=9; results to GPU_OUT
	@test -f $(GPU_KIT)/measure.py || { echo "no $(GPU_KIT) here: make gpu-kit where there is a network, and bring it along" >&2; exit 1; }
	$(GPU_PYTHON) $(GPU_KIT)/measure.py --minutes $(GPU_MINUTES) --out $(GPU_OUT)

study-gpu: ## study this machine's GPU with the kit, after profile-gpu: attention kernels, overlap …; records to GPU_STUDY
	@test -f $(GPU_KIT)/study.py || { echo "no $(GPU_KIT) here: make gpu-kit where there is a network, and bring it along" >&2; exit 1; }
	$(GPU_PYTHON) $(GPU_KIT)/study.py --minutes $(GPU_MINUTES) --out $(GPU_STUDY)

publish-gpu: $(TEST_READY) ## fit the results in GPU_OUT, compare, and publish them as NAME_measured: GPU_REPLACE=yes replaces it
	@set -e; folder=$$($(TEST) -m microbench unpack $(GPU_OUT)/results.tar.gz --into $(GPU_RESULTS)); name=$$(basename "$$folder"); \
	fitted="$$folder/published"; known="regressors/$$name"; test -d "$$known" || known=; \
	$(TEST) -m microbench status "$$folder"; \
	$(TEST) -m fitting fit --system "$$folder/system.yaml" --measurements "$$folder" --out "$$fitted" \
		--name "$${name}_measured" $${known:+--keep "$$known"}; \
	$(TEST) -m fitting held-out "$$folder/system.yaml" "$$folder"; \
	for system in $$known "$$fitted"; do \
		echo "The same steps predicted by $$system:"; \
		if [ -d "$$folder/steps" ]; then $(TEST) -m microbench compare-steps "$$folder" --regressors "$$system"; \
		else echo "no steps to compare: the survey ended before them"; fi; \
	done; \
	$(TEST) -m fitting publish "$$fitted" --out "regressors/$${name}_measured" $(if $(GPU_REPLACE),--replace)

survey-emulated: $(WORKFLOW_READY) ## a whole survey on a GPU in virtual time; the kit, every stage a process, to a published system
	SURVEY_SHAPES=120 SURVEY_EMULATED=yes $(WORKFLOW) -m pytest tests/unit/microbench/test_survey_virtual.py -s

slurm-installed:
	@PATH="$$PATH:/usr/sbin"; \
	if ! { command -v sbatch && command -v slurmctld && command -v munged; } >/dev/null && [ "$$(id -u)" = 0 ]; then \
		apt-get update && apt-get install --yes --no-install-recommends slurm-wlm munge; \
	fi

test-slurm: $(WORKFLOW_READY) slurm-installed ## profile through a temporary Slurm cluster, with and without faults; as root installs slurm-wlm
	SLURM_TESTS=1 $(WORKFLOW) -m pytest tests/workflow --ignore-glob 'tests/workflow/test_launch_*.py' --durations=0 --durations-min=1 -s

test-launch: $(WORKFLOW_READY) slurm-installed ## jobs on a temporary Slurm cluster, preempted and lost; training killed at random points
	SLURM_TESTS=1 $(WORKFLOW) -m pytest tests/workflow/test_launch_*.py --durations=0 --durations-min=1 -s
	TRAINER_FAULTS=1 $(WORKFLOW) -m pytest tests/trainer --durations=0 --durations-min=10 -s

faults: $(WORKFLOW_READY) ## inject 200 faults into small trainings, some of them as root only, and judge watch: FAULTS_OUT=folder; half an hour
	$(WORKFLOW) -m tests.faults --runs 200 --out "$(FAULTS_OUT)" --misses

clean: ## remove environments, caches and builds
	rm -rf .venv build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Each framework alone, as several releases of one are asked. Without a wheel for this Python, one for a later Python does.
$(JUDGES_READY): tests/written/packages.txt $(WORKFLOW_READY)
	@rm -rf "$(@D)"
	@grep '^[a-z]' $< | while read -r framework packages; do \
		folder="$(@D)/$$(echo "$$framework" | sed 's/==/-/')"; \
		DS_BUILD_OPS=0 $(WORKFLOW) -m pip install $(PIP_OPTIONS) --constraint constraints.txt --no-deps --target "$$folder" "$$framework" $$packages 2>/dev/null || \
		$(WORKFLOW) -m pip install $(PIP_OPTIONS) --constraint constraints.txt --no-deps --target "$$folder" --only-binary :all: --python-version 3.12 --ignore-requires-python "$$framework" $$packages || exit 1; \
	done
	@touch "$@"

# Modules are compiled as they are imported: of torch and transformers few ever are.
PIP_OPTIONS := --quiet --disable-pip-version-check --no-compile

$(PREDICT_READY): EXTRAS :=
$(TEST_READY): EXTRAS := [fit,readers,test]
$(PROFILE_READY): EXTRAS := [fit,profile]
$(DOCS_READY): EXTRAS := [docs]
$(WORKFLOW_READY): EXTRAS := [fit,launch,profile,readers,recommend,reference,test,train,workflow]
.venv/%/$(READY): pyproject.toml constraints.txt training/hugectr/engine-cpu.txt
	@rm -rf "$(@D)"
	@for python in $(or $(PYTHON),$(PYTHONS)); do \
		"$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && break; \
		python=; \
	done; \
	if [ -z "$$python" ]; then \
		echo "No Python 3.11 or newer found as $(or $(PYTHON),$(PYTHONS)): install one, or name it with PYTHON=/path/to/python" >&2; \
		exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
		echo "$$python cannot make environments: install its venv package (Debian, Ubuntu: apt install python3-venv)" >&2; \
		exit 1; \
	fi; \
	echo "Setting up $(@D) with $$("$$python" --version), once" >&2; \
	"$$python" -m venv "$(@D)"
	@"$(@D)/bin/python" -m pip install $(PIP_OPTIONS) --constraint constraints.txt --editable ".$(EXTRAS)"
	@if [ "$(*)" = workflow ]; then \
		"$(@D)/bin/python" -m pip install $(PIP_OPTIONS) --constraint constraints.txt --no-deps -r training/hugectr/engine-cpu.txt; \
	fi
	@touch "$@"
