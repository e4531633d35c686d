.PHONY: help book test lab serve coursework grade submissions-named clean
.DEFAULT_GOAL := help

# Any Python 3.11-3.13 will do; `make PYTHON=/path/to/python ...` names one.
PYTHON ?= python3 python3.13 python3.12 python3.11 python
BIN := .venv/bin
SETUP := .venv/.complete
# The virtual environment first on PATH, and no stray PYTHONPATH or user site in it; on OMP_WAIT_POLICY see postBuild.
RUN := env -u PYTHONPATH -u PYTHONHOME PYTHONNOUSERSITE=1 OMP_WAIT_POLICY=PASSIVE PATH="$(CURDIR)/$(BIN):$$PATH"

help:
	@echo "make book    build the book into _build/html and print the page to open"
	@echo "make test    run every test: library, chapters, pages, Binder, JupyterLab"
	@echo "make lab     open JupyterLab at this folder"
	@echo "make serve   serve the built book on localhost (PORT=8000)"
	@echo "make coursework SEED=7           build the assignment, with a course's own numbers"
	@echo "make grade SUBMISSIONS=folder SEED=7    grade what its students handed in"
	@echo "make clean   remove the built book, the built assignments and the virtual environment"
	@echo "PYTHON=/path/to/python names the Python for the set-up, which the first of these calls does by itself."

book: $(SETUP)
	rm -rf _build
	$(RUN) jupyter-book build . -W -n --keep-going
	@echo
	@echo "Open in a browser: $(CURDIR)/_build/html/index.html"

test: $(SETUP)
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) python -m pytest

lab: $(SETUP)
	$(RUN) jupyter lab

serve:
	@test -f _build/html/index.html || { echo "There is no book yet: run 'make book' first."; exit 1; }
	@$(BIN)/python -m http.server --bind 127.0.0.1 --directory _build/html $(or $(PORT),8000)

# From the command line only, not from variables that happen to be in the environment.
SEED = 0
SUBMISSIONS =
UNCONFINED =
export SUBMISSIONS

coursework: $(SETUP)
	$(RUN) python coursework/assign.py --seed "$(SEED)"

grade: submissions-named $(SETUP)
	$(RUN) python coursework/grade.py "$$SUBMISSIONS" --seed "$(SEED)" $(if $(UNCONFINED),--unconfined)

submissions-named:
	@test -n "$$SUBMISSIONS" || { echo "Which submissions? make grade SUBMISSIONS=folder SEED=..."; exit 1; }

clean:
	rm -rf _build coursework/build .venv .pytest_cache .ruff_cache *.egg-info
	find . -name __pycache__ -not -path './.git/*' -prune -exec rm -rf {} +

# torch alone is asked of its CPU index, so that nothing else depends on a second host; --no-deps because the
# second call brings what torch needs.
$(SETUP): environment.yml pyproject.toml postBuild share/jupyter/lab/settings/overrides.json
	@for python in $(PYTHON); do \
	  if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then \
	    rm -rf .venv && exec "$$python" -m venv .venv; \
	  fi; \
	done; \
	echo "This book needs Python 3.11, 3.12 or 3.13, and none of these is one: $(PYTHON). PYTHON=/path/to/python names another."; \
	exit 1
	@sed -n '/- pip:/,$$ s/^ *- //p' environment.yml | grep -v '^pip:' > .venv/pins.txt
	@grep -E '^(--|torch)' .venv/pins.txt > .venv/torch.txt
	@grep -v '^--' .venv/pins.txt > .venv/others.txt
	@echo "Installing about 200 packages into .venv (a few minutes) ..."
	@$(RUN) python -m pip install --quiet --retries 1 --no-deps -r .venv/torch.txt
	@$(RUN) python -m pip install --quiet -r .venv/others.txt
	$(RUN) ./postBuild
	@touch $@
