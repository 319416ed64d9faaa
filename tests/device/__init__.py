"""Tests that need the fake CUDA device (tests/fake_cuda): `make test-device` runs them, an ordinary run skips them.

The files here hold the device itself to what its docstring claims; what the library does on it is tested beside them.
"""
