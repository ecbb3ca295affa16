"""Stands in for PyTorch where the tests of the hook for Python workers have none (docs/users/hang.md). It has the names that the hook
uses, with the answers of torch 2.15.0. tests/cli/hang_test.py uses the real one where DDP_TEST_TORCH_PYTHON names it."""

import torch.distributed  # as PyTorch does
