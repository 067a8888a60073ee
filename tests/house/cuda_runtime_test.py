#!/usr/bin/env python3
"""Which packages scripts/cuda_runtime.py reads from the requirements of a CUDA wheel."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import cuda_runtime  # noqa: E402


class CudaRuntime(unittest.TestCase):
    def test_a_cuda_13_wheel_names_them_through_the_toolkit_bundle(self):
        requirements = ["filelock", 'cuda-toolkit[cublas,cudart,cupti]==13.0.3; platform_system == "Linux"',
                        'nvidia-cudnn-cu13==9.20.0.48; platform_system == "Linux"']

        self.assertEqual(cuda_runtime.needed(requirements), ["nvidia-cuda-runtime==13.0.*", "nvidia-cuda-cupti==13.0.*"])

    def test_a_cuda_12_wheel_names_them_directly(self):
        requirements = ['nvidia-cuda-runtime-cu12==12.8.90; platform_system == "Linux"',
                        'nvidia-cuda-cupti-cu12==12.8.90; platform_system == "Linux"', "nvidia-cublas-cu12==12.8.4.1"]

        self.assertEqual(cuda_runtime.needed(requirements), ["nvidia-cuda-runtime-cu12==12.8.90",
                                                             "nvidia-cuda-cupti-cu12==12.8.90"])

    def test_a_cpu_wheel_names_none(self):
        self.assertEqual(cuda_runtime.needed(["filelock", "sympy>=1.13.3"]), [])


if __name__ == "__main__":
    unittest.main()
