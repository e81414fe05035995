# What authors and instructors make. A student edition lacks this file.
#
# make test-all    everything that can be proven here but the soaks; interrupted, it goes on
#                  SLICE=9m: begin nothing after nine minutes, and go on at the next call
# make soak        what takes hours: thousands of steps and requests, seeds by the hundred
# make gpu         the GPU tests and the bench, a slice of 9 minutes a call, or of SLICE=7m
# make test-versions   the simulator's tests on the oldest and the newest compilers supported
# make compiled    what the compilers make of the shipped kernels for Hopper; needs no GPU
# make site        the course as pages for a browser, in .cache/site/html
# make speed       the simulator against other simulators and its targets, CPU seconds on this machine

.PHONY: test-all soak test-versions compiled site speed gpu

test-all: set-up-tests
	@.venv/bin/python -m lab.author.prove all $(if $(SLICE),--slice $(SLICE))

soak: set-up-tests
	@.venv/bin/python -m lab.author.prove soak

# Without .venv: it makes environments of its own.
test-versions:
	@$(if $(python),$(python) -m lab.author.versions --wheels $(torch_wheels)/cpu,$(no_python))

compiled: set-up
	@.venv/bin/python -m lab.author.hopper_report

site: set-up-tests
	@.venv/bin/python -m lab.author.site

speed: set-up
	@.venv/bin/python -m lab.author.simulator_speed --wheels $(torch_wheels)/cpu

# A machine lent for its GPU may hold torch already and reach no package index.
prove_gpu := -m lab.author.prove gpu $(if $(SLICE),--slice $(SLICE))
gpu_here := import pytest, sys, tomllib, torch; sys.exit(not torch.cuda.is_available())
gpu:
	@if python3 -c '$(gpu_here)' 2>/dev/null; then exec python3 $(prove_gpu); fi; \
	$(call set_up,--need-gpu) && .venv/bin/python $(prove_gpu)
