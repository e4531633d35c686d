.PHONY: help check test lint book page lab serve coursework grade submissions-named lock setup browser clean
.DEFAULT_GOAL := help

# Any Python 3.11-3.13 will do; `make PYTHON=/path/to/python ...` names one.
PYTHON ?= python3 python3.13 python3.12 python3.11 python
# The virtual environment first on PATH, and no stray PYTHONPATH or user site in it; on OMP_WAIT_POLICY see postBuild.
RUN := env -u PYTHONPATH -u PYTHONHOME PYTHONNOUSERSITE=1 OMP_WAIT_POLICY=PASSIVE PATH="$(CURDIR)/.venv/bin:$$PATH"
# Tests run in two processes; more threads than processors would wait for each other.
PYTEST := $(RUN) OMP_NUM_THREADS=1 python -m pytest --numprocesses 2 --dist worksteal

help:
	@echo "make book    build the book into _build/html and print the page to open"
	@echo "make page CHAPTER=tokens/two-tokens     build one page, to look at while you write"
	@echo "make check   ruff, the tests of the library and its examples: two minutes"
	@echo "make test    every test: library, chapters, pages, Binder, JupyterLab, coursework"
	@echo "make lab     open JupyterLab at this folder"
	@echo "make serve   serve the built book on localhost (PORT=8000)"
	@echo "make coursework NAME=transition SEED=7  build an assignment, with a course's own numbers"
	@echo "make grade NAME=transition SEED=7 SUBMISSIONS=folder    grade what its students handed in"
	@echo "make lock    compile requirements.lock from pyproject.toml (UPGRADE=1: the newest versions)"
	@echo "make clean   remove the built book, the built assignments and the virtual environment"
	@echo "PYTHON=/path/to/python names the Python for the set-up, which the first of these calls does by itself."

book: setup
	@$(RUN) python tools/build.py

page: setup
	@$(RUN) python tools/build.py --page "$(CHAPTER)"

check: setup lint
	$(PYTEST) --ignore=tests/book --ignore=tests/test_planted_faults.py

test: browser lint
	$(PYTEST)

lint: setup
	$(RUN) python tools/ruff_chapters.py
	$(RUN) python -m ruff check .
	$(RUN) python -m ruff format --check .

lab: setup
	$(RUN) python -m jupyter lab

serve:
	@test -f _build/html/index.html || { echo "There is no book yet: run 'make book' first."; exit 1; }
	@.venv/bin/python -m http.server --bind 127.0.0.1 --directory _build/html $(or $(PORT),8000)

# From the command line only, not from variables that happen to be in the environment.
NAME =
SEED = 0
SUBMISSIONS =
UNCONFINED =
CHAPTER =
UPGRADE =
export SUBMISSIONS

coursework: setup
	$(RUN) python coursework/assign.py $(if $(NAME),--name "$(NAME)") --seed "$(SEED)"

grade: submissions-named setup
	$(RUN) python coursework/grade.py "$$SUBMISSIONS" $(if $(NAME),--name "$(NAME)") --seed "$(SEED)" $(if $(UNCONFINED),--unconfined)

submissions-named:
	@test -n "$$SUBMISSIONS" || { echo "Which submissions? make grade SUBMISSIONS=folder SEED=..."; exit 1; }

lock: setup
	$(RUN) python tools/lock.py $(if $(UPGRADE),--upgrade)

# `browser` is `setup` that sees to a browser first. The first Python that will do sees to .venv; what is up to date is left as it is.
setup browser:
	@for python in $(PYTHON); do \
	  if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	    exec env -u PYTHONPATH -u PYTHONHOME "$$python" tools/setup.py $(if $(filter browser,$@),--browser); \
	  fi; \
	done; \
	echo "This book needs Python 3.11, 3.12 or 3.13, and none of these is one: $(PYTHON). PYTHON=/path/to/python names another."; \
	exit 1

clean:
	rm -rf _build coursework/build .venv .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +
