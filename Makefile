# Everything here works on a machine that has Python >= 3.11 and make, and nothing else of ours:
#
#   make demo        prepare a corpus, train a tokenizer, pretrain a tiny BERT, fill in masks
#   make test        run the tests
#   make test-slow   run the tests marked as slow
#   make lint        ruff and mypy
#   make docs        build the documentation: docs/_build/index.html
#   make course      open the course, eight notebooks, in JupyterLab
#
# The first call of each makes .venv and installs into it, the only part that needs the internet.

PYTHON ?= $(shell for python in python3 python3.13 python3.12 python3.11 python; do \
	  $$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  && echo $$python && break; done)
BERT_JAX := .venv/bin/bert-jax
DEMO := runs/demo
WORKERS ?= 2

.PHONY: demo test test-slow lint docs course
.DELETE_ON_ERROR:

# Each step writes its file below last, and renames it when it is complete. So a demo that was
# killed resumes with the step in which it was killed.
demo: $(DEMO)/corpus/manifest.json | .venv/installed
	$(BERT_JAX) pretrain --config configs/pretrain/demo.py
	$(BERT_JAX) fill-mask --work-dir $(DEMO) \
	  "The return [MASK] is a list of strings." \
	  "If the key is not [MASK], a KeyError is raised." \
	  "Return True if the object is an [MASK] of the class."

$(DEMO)/text/demo.jsonl: | .venv/installed
	$(BERT_JAX) demo-corpus --output $@

$(DEMO)/tokenizer/vocab.txt: $(DEMO)/text/demo.jsonl
	$(BERT_JAX) train-tokenizer --input $< --output $(@D) --vocab-size 8000

$(DEMO)/corpus/manifest.json: $(DEMO)/text/demo.jsonl $(DEMO)/tokenizer/vocab.txt
	$(BERT_JAX) prepare --input $< --tokenizer $(DEMO)/tokenizer --output $(@D) \
	  --max-length 128 --held-out 0.05 --workers $(WORKERS)

# All tests share compiled programs, which are kept between runs. Tests of one file also share
# fixtures, so they share a worker. Files are taken in the order of tests/conftest.py, the slow ones
# first.
test: .venv/installed-dev
	JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.cache/jax .venv/bin/pytest -n $(WORKERS) --dist loadfile \
	  --no-loadscope-reorder

# The slow tests often wait for processes that they have started, so they use one more worker.
test-slow: .venv/installed-dev
	JAX_COMPILATION_CACHE_DIR=$(CURDIR)/.cache/jax .venv/bin/pytest -n $$(( $(WORKERS) + 1 )) \
	  --dist loadfile --no-loadscope-reorder -m slow

lint: .venv/installed-dev
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

# Warnings are errors. Nothing is downloaded while the pages are built or read.
docs: .venv/installed-docs
	.venv/bin/python -m sphinx -W --keep-going -q -d docs/_build/.doctrees docs docs/_build

course: .venv/installed-course
	PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/jupyter lab docs/course

.venv/bin/python:
	@test -n "$(PYTHON)" || { echo "no Python >= 3.11 on PATH; make PYTHON=/path/to/python3" >&2; exit 1; }
	$(PYTHON) -m venv .venv

.venv/installed: setup.py | .venv/bin/python
	.venv/bin/pip install --quiet --editable .
	touch $@

.venv/installed-docs: setup.py | .venv/bin/python
	.venv/bin/pip install --quiet --editable '.[docs]'
	touch $@

.venv/installed-course: setup.py | .venv/bin/python
	.venv/bin/pip install --quiet --editable '.[course]'
	touch $@

# The tests compare against PyTorch on the CPU. Its CPU build comes from PyTorch's own index (about
# 200 MB); if that index has none, PyPI's build of the same version works as well. seqeval is a
# source package that only builds with PEP 517, which pip before 25.3 does not use by default.
.venv/installed-dev: setup.py | .venv/bin/python
	.venv/bin/pip install --quiet torch==2.13.0 \
	  --retries 1 --extra-index-url https://download.pytorch.org/whl/cpu
	.venv/bin/pip install --quiet --use-pep517 --editable '.[dev]'
	touch $@
