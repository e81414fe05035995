"""Imported by a warm process alone: NVRTC loads and compiles once, before any child does."""

from lab import device, simulator

device.use_simulator(triton=False)
simulator.self_test()
