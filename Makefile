# Every target goes through launch.py: it uses the active environment where that has the project, else .venv.
PYTHON ?= python3

.PHONY: check test lint fast format docs

check: ## linters and every test; what .ci/run does
	$(PYTHON) launch.py check

test: check

lint: ## ruff format --check, ruff check, mypy, lint-imports
	$(PYTHON) launch.py lint

fast: ## the tests that need neither a browser nor more than seconds
	$(PYTHON) launch.py test -m "not slow and not browser"

format:
	$(PYTHON) launch.py format

docs: ## the tests that run the commands in README.md and docs/
	$(PYTHON) launch.py test -k docs
