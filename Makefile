# make demo   record and classify a short labelled capture; two sites with one queue and with slices, side by side
# make test   all tests
# make check  linter, formatter, types
# make bpf    compile the embedded switch's eBPF object again (needs clang and libbpf's headers)
# make p4     compile the P4 program again (needs p4c)
# make bench  all benchmarks, appended to benchmarks/results.csv
VENV ?= .venv
PY := $(VENV)/bin/python
# Debian keeps ip, ethtool and tcpdump where PATH does not lead after a plain su.
export PATH := $(PATH):/usr/sbin:/sbin

.PHONY: demo test check bpf p4 bench clean

demo:
	@scripts/setup.sh demo
	@$(PY) -m dinnet demo --out out/demo

test:
	@scripts/setup.sh test
	@echo "==> running all tests (those that lack root, a kernel feature or a program are skipped with the reason)"
	@$(PY) -m pytest $(PYTEST_ARGS)

check:
	@scripts/setup.sh test
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check .
	@$(VENV)/bin/mypy

bpf:
	@scripts/setup.sh test
	@$(PY) -m dinnet.switch.build

p4:
	@scripts/setup.sh test
	@$(PY) -m dinnet.dataplane.p4build

bench:
	@scripts/setup.sh test
	@$(PY) benchmarks/run_all.py

clean:
	rm -rf $(VENV) $(VENV)-p4rt out build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
