#!/usr/bin/env python3
"""Tests which environment pytorch.py gives to an interpreter, with fake builds of PyTorch."""

import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))
from tests.support import pytorch

# A store whose documentation names the arguments, as pybind writes them.
STORE = '''
def is_available():
    return {available}

class TCPStore:
    def __init__(self, *args, {argument}):
        """{argument}"""
        {refuse}
'''
REFUSE = 'if use_libuv: raise RuntimeError("use_libuv was requested but PyTorch was built without libuv support")'


class Builds(unittest.TestCase):
    def needs(self, available=True, argument="wait_for_workers=True, use_libuv=True", refuse="pass"):
        with tempfile.TemporaryDirectory(prefix="ddp-pytorch-") as folder:
            package = pathlib.Path(folder) / "torch"
            package.mkdir()
            (package / "__init__.py").touch()
            (package / "distributed.py").write_text(STORE.format(available=available, argument=argument, refuse=refuse))
            pytorch.probe.cache_clear()
            self.addCleanup(pytorch.probe.cache_clear)
            with unittest.mock.patch.dict(os.environ, PYTHONPATH=folder):
                return pytorch.probe(sys.executable)

    def test_a_build_with_libuv_runs_as_it_is(self):
        self.assertEqual(self.needs(), {})

    def test_a_build_without_libuv_gets_the_other_store(self):
        self.assertEqual(self.needs(refuse=REFUSE), {"USE_LIBUV": "0"})

    def test_a_build_without_libuv_does_not_join_the_store_of_an_agent(self):
        for needs, joins in (({}, True), ({"USE_LIBUV": "0"}, False), (None, False)):
            with unittest.mock.patch.object(pytorch, "probe", return_value=needs):
                self.assertEqual((pytorch.can_join_store(), pytorch.why_not() is None), (joins, joins))

    def test_a_build_before_libuv_runs_as_it_is(self):
        self.assertEqual(self.needs(argument="wait_for_workers=True"), {})

    def test_another_failure_of_the_store_is_not_taken_for_a_missing_torch(self):
        with self.assertRaisesRegex(RuntimeError, "address in use"):
            self.needs(refuse='raise RuntimeError("address in use")')

    def test_interpreters_without_torch_distributed(self):
        self.assertIsNone(self.needs(available=False))
        self.assertIsNone(pytorch.probe("/nonexistent/python3"))
        self.assertFalse(pytorch.can_join_store("/nonexistent/python3"))
        self.assertEqual(pytorch.why_not("/nonexistent/python3"), "/nonexistent/python3 has no PyTorch")
        self.assertEqual(pytorch.environment("/nonexistent/python3"), {})


if __name__ == "__main__":
    unittest.main()
