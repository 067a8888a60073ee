"""PyTorch's own tests of its process groups, as they lie in the wheel, over the engine in Gloo's place.

Each starts three processes. Those that need GPUs or another backend skip themselves, as over Gloo.
"""
import os
import tempfile

os.environ.update(BACKEND="gloo", WORLD_SIZE="3", HASTEN_FOR_GLOO="1", TEMP_DIR=tempfile.mkdtemp())
for name in ("test_dir", "init_dir", "barrier"):
    os.makedirs(os.path.join(os.environ["TEMP_DIR"], name))

import pytest  # noqa: E402

pytest.importorskip("expecttest")
pytest.importorskip("hypothesis")

import torch  # noqa: E402
from torch.distributed import distributed_c10d  # noqa: E402
from torch.testing._internal.distributed.distributed_test import DistributedTest, TestDistBackend  # noqa: E402

# Tests that fail over the engine, each with its reason.
DIFFERENT = {}


class TestDistributed(TestDistBackend, DistributedTest._DistTestBase):
    def setUp(self):
        assert hasattr(distributed_c10d.ProcessGroupGloo, "_real_gloo")
        if self._testMethodName in DIFFERENT:
            self.skipTest(DIFFERENT[self._testMethodName])
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)
