#!/usr/bin/env python3
"""./dev new in a tree of its own: what it writes, what it refuses. Whether the files compile, ./dev test sees later."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

NEW = Path(__file__).resolve().parents[2] / "scripts/new.py"


class New(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "CMakeLists.txt").write_text("hasten_room(core)\nhasten_room(comm TORCH ROOMS core)\n")

    def new(self, *arguments):
        return subprocess.run([sys.executable, NEW, "--root", self.root, *arguments], capture_output=True, text=True)

    def test_it_writes_header_source_test_and_document(self):
        result = self.new("comm", "device_mesh")

        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(result.stdout.split(), ["include/hasten/comm/device_mesh.h", "src/comm/device_mesh.cpp",
                                                 "tests/comm/device_mesh_test.cpp", "docs/comm/device_mesh.md"])
        self.assertIn("class DeviceMesh {", (self.root / "include/hasten/comm/device_mesh.h").read_text())
        self.assertIn("namespace hasten::comm {", (self.root / "src/comm/device_mesh.cpp").read_text())

    def test_a_sub_room_has_a_folder_of_its_own_and_the_rooms_namespace(self):
        result = self.new("comm/mesh", "device_mesh")

        self.assertIn("src/comm/mesh/device_mesh.cpp", result.stdout.split())
        self.assertIn("namespace hasten::comm {", (self.root / "src/comm/mesh/device_mesh.cpp").read_text())

    def test_what_it_writes_compiles(self):
        self.new("core", "clock")

        source = self.root / "src/core/clock.cpp"
        result = subprocess.run(["c++", "-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only",
                                 f"-I{self.root}/include", source], capture_output=True, text=True)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_an_unknown_room_is_refused_with_the_nearest(self):
        result = self.new("com", "device_mesh")

        self.assertEqual(result.returncode, 2)
        self.assertIn("unknown room 'com', did you mean 'comm'?", result.stderr)

    def test_an_existing_concept_is_refused_and_left_alone(self):
        self.new("comm", "device_mesh")
        header = self.root / "include/hasten/comm/device_mesh.h"
        header.write_text("mine")

        result = self.new("comm", "device_mesh")

        self.assertEqual(result.returncode, 2)
        self.assertIn("'device_mesh' exists already: include/hasten/comm/device_mesh.h", result.stderr)
        self.assertEqual(header.read_text(), "mine")

    def test_a_name_in_another_case_is_refused(self):
        self.assertEqual(self.new("comm", "DeviceMesh").returncode, 2)


if __name__ == "__main__":
    unittest.main()
