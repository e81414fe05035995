# make learn       set up, put the first lesson on the desk (work/) and open it
# make test        prove the course on this machine, with a sample of what takes long
# make test-all    everything that can be proven here
# make gpu         the GPU tests and the bench, a slice of at most 9 minutes a call
# make test-versions   the simulator's tests on the oldest and the newest compilers supported
# make compiled    what the compilers make of the shipped kernels for Hopper; needs no GPU
# make speed       the simulator against other simulators and its targets, CPU seconds on this machine
#
# BUILD=cpu        with any of them: no CUDA, although there is an NVIDIA driver

# PyTorch's own wheels: without CUDA, and for CUDA 12. Asked only where they are what fits.
torch_wheels := https://download.pytorch.org/whl

# The first Python that runs and is supported. A name on the path may be a shim that does not run.
supported := import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))
python := $(shell for name in python3 python3.13 python3.12 python3.11; do \
	$$name -I -c '$(supported)' 2>/dev/null && echo $$name && break; done)
no_python = echo "no Python 3.11, 3.12 or 3.13 here, python3 is" \
	"$$(python3 -V 2>/dev/null || echo missing): install one, such as" \
	"sudo apt install python3.12-venv, and try again" >&2; exit 2
set_up = $(if $(python),$(python) -I lab/setup.py --wheels $(torch_wheels) \
	$(if $(BUILD),--build "$(BUILD)") $(1),$(no_python))

# A mirror, a proxy or find-links of the user's stays in force; an install for the user cannot.
export PIP_USER := 0

.PHONY: learn test test-all test-versions compiled speed gpu set-up set-up-tests

learn: set-up
	@.venv/bin/lab start
	@.venv/bin/lab open

test: set-up-tests
	@.venv/bin/python -m lab.prove sample

test-all: set-up-tests
	@.venv/bin/python -m lab.prove all

# Without .venv: it makes environments of its own.
test-versions:
	@$(if $(python),$(python) -m lab.versions --wheels $(torch_wheels)/cpu,$(no_python))

compiled: set-up
	@.venv/bin/python -m lab.compiled

speed: set-up
	@.venv/bin/python -m lab.speed --wheels $(torch_wheels)/cpu

# A machine lent for its GPU may hold torch already and reach no package index.
gpu_here := import pytest, sys, torch; sys.exit(not torch.cuda.is_available())
gpu:
	@if python3 -c '$(gpu_here)' 2>/dev/null; then exec python3 -m lab.prove gpu; fi; \
	$(call set_up,--need-gpu) && .venv/bin/python -m lab.prove gpu

set-up:
	@$(call set_up)

set-up-tests:
	@$(call set_up,--tests)
