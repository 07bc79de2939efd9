# Everything runs in .venv, which each target makes and completes as far as it needs.
# More words for a command go into ARGS:  make chat ARGS="--model ./model.gguf --temp 0.7"

PYTHON ?= $(shell for p in python3 python3.14 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo $$p; break; }; \
	done)
VENV := .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest --numprocesses auto --maxprocesses 4 --dist loadfile
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help chat demo test slow check exact bench clean

help: ## Show this
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 16

chat: $(VENV)/.installed ## Talk to a model in the terminal
	@$(BIN)/mtplx chat $(ARGS)

demo: $(VENV)/.installed ## One prompt, drafting off and on, with the figures
	@$(BIN)/mtplx demo $(ARGS)

bench: $(VENV)/.installed ## Measure plain decoding and each draft depth on this machine
	@$(BIN)/mtplx bench $(ARGS)

test: $(VENV)/.installed-dev ## Run the tests that take two seconds or less each, some minutes in all
	@$(PYTEST) -m 'not slow' $(ARGS)

slow: $(VENV)/.installed-dev ## Run the other tests, a quarter of an hour or more
	@$(PYTEST) -m slow $(ARGS)

exact: $(VENV)/.installed-dev ## Prove that drafting changes no distribution
	@$(BIN)/python -m tests.exact $(ARGS)

check: $(VENV)/.installed-dev ## Formatting, lint and types
	@$(BIN)/ruff format --check
	@$(BIN)/ruff check
	@$(BIN)/mypy

clean: ## Remove what make made here; models in your cache stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

# An editable installation: changes to the code need no new one, changes to pyproject.toml do.
$(VENV)/.installed: pyproject.toml $(VENV)/.made
	@echo "Installing MTPLX and what it needs into $(VENV); the first time takes some minutes."
	@$(BIN)/python -m pip install -qq --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "Installing what the tests and checks need into $(VENV)."
	@$(BIN)/python -m pip install -qq --editable . --group dev --group reference
	@touch $@

# pip 25.1 is the first that knows --group.
$(VENV)/.made:
	@test -n "$(PYTHON)" && $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
		echo "MTPLX needs Python 3.11 or newer, and $(if $(PYTHON),$(PYTHON) is older,none was found)." \
		"Install one, then run: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -qq --upgrade 'pip>=25.1'
	@touch $@
