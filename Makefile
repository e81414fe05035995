# make learn       set up, put the lessons on the desk (work/) and open the first
# make test        prove the course on this machine in minutes: the house, the main path, a sample of the rest
# lab/authors.mk   has what authors make besides: test-all, gpu, test-versions, compiled, speed
#
# BUILD=cpu        with any of them: no CUDA, even with an NVIDIA driver

# PyTorch's own wheels: without CUDA, and for CUDA 12. Used only where they fit.
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

# A mirror, a proxy or find-links of the user's stays in force; a --user install cannot.
export PIP_USER := 0

.PHONY: learn test set-up set-up-tests

learn: set-up
	@.venv/bin/lab start
	@.venv/bin/lab open

test: set-up-tests
	@.venv/bin/python -m lab.author.prove landing

# Absent in a student edition.
-include lab/authors.mk

set-up:
	@$(call set_up)

set-up-tests:
	@$(call set_up,--tests)
