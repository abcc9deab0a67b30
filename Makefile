# make run | make test are the two commands of the README; the rest is for developers.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROMPT ?= Explain in three sentences why the first token of an answer takes longer than the next ones.
MODEL ?= smollm2:135m

.DEFAULT_GOAL := help
.PHONY: help run test test-models test-clients soak lint format bench-peers chart check-tools update clean

help:
	@echo "make run [PROMPT=...] [MODEL=...]   build, fetch the sample model, answer, report both phases"
	@echo "make test                           everything but other real models, other clients and the soak"
	@echo "make test-models | test-clients | soak | lint | format | clean"
	@echo "make update                         renew the locked versions in requirements/ from pyproject.toml"

check-tools:
	@PYTHON="$(PYTHON)" bash .ci/check-tools

$(VENV)/.run: requirements/run.txt pyproject.toml CMakeLists.txt $(wildcard native/* native/*/*) | check-tools
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@bash .ci/install $(BIN)/python run
	@touch $@

$(VENV)/.dev: $(VENV)/.run requirements/dev.txt
	@bash .ci/install $(BIN)/python dev
	@touch $@

run: $(VENV)/.run
	@$(BIN)/twostroke run "$(MODEL)" --prompt "$(PROMPT)"

test: $(VENV)/.dev
	$(BIN)/twostroke pull smollm2:135m
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not models and not soak and not clients"

test-models: $(VENV)/.dev
	$(BIN)/python tests/fetch_models.py
	$(BIN)/python -m pytest -m "models"

test-clients: $(VENV)/.dev
	@bash .ci/clients $(PYTHON)
	$(BIN)/twostroke pull smollm2:135m
	$(BIN)/python -m pytest -m "clients"

soak: $(VENV)/.dev
	$(BIN)/python -m pytest -m "soak"

bench-peers: $(VENV)/.dev
	bash benchmarks/peers/setup_peers.sh
	$(BIN)/twostroke pull smollm2:135m
	$(BIN)/python benchmarks/peers/compare.py $${TWOSTROKE_CACHE:-$$HOME/.cache/twostroke}/models/smollm2-135m-instruct-q4_1.gguf \
		--engines twostroke,llamacpp,openvino-int8,openvino-int4,transformers

chart: $(VENV)/.dev
	$(BIN)/python benchmarks/chart.py

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files 'native/*.cpp' 'native/*.h' 'native/*.inc')

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $$(git ls-files 'native/*.cpp' 'native/*.h' 'native/*.inc')

update:
	@test -x .venvs/update/bin/python || $(PYTHON) -m venv .venvs/update
	@bash .ci/install .venvs/update/bin/python update
	@bash .ci/lock .venvs/update/bin/uv

clean:
	rm -rf $(VENV) build
