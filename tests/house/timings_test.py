#!/usr/bin/env python3
"""scripts/timings.py: what it reads out of a ninja log and a JUnit report."""
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import timings  # noqa: E402

LOG = """# ninja log v5
0\t2000\t1\tCMakeFiles/hasten_comm.dir/Unity/unity_0_cxx.cxx.o\taa
0\t1000\t1\tCMakeFiles/hasten_comm.dir/Unity/unity_1_cxx.cxx.o\tbb
5000\t9000\t1\tCMakeFiles/hasten_comm.dir/Unity/unity_1_cxx.cxx.o\tbb
0\t500\t1\thasten_comm_verify_interface_header_sets/CMakeFiles/hasten_comm_verify_interface_header_sets.dir/hasten/comm/work.h.cxx.o\tcc
0\t250\t1\tCMakeFiles/hasten_comm_header_check.dir/header_check/hasten_comm_sorted.cpp.o\tff
9000\t9500\t1\ttests/comm_unit_tests\tdd
9000\t9500\t1\ttests/comm_unit_tests_suites.cmake\tdd
0\t3000\t1\ttests/CMakeFiles/comm_unit_tests.dir/comm/work_test.cpp.o\tee
"""
REPORT = '<testsuite><testcase name="comm.Work" time="0.5"/><testcase name="comm.Split" time="1"/><testcase name="core.Env.A" time="0.25"/></testsuite>'


class Timings(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.build = Path(self.folder.name)

    def run_script(self):
        return subprocess.run([sys.executable, SCRIPTS / "timings.py", self.build], capture_output=True, text=True)

    def test_the_last_time_of_an_output_counts_and_a_command_once(self):
        log = self.build / ".ninja_log"
        log.write_text(LOG, encoding="utf-8")
        self.assertEqual(timings.read_build(log), {"comm": 6.0, "comm headers": 0.75, "comm_unit_tests": 3.5})

    def test_tests_are_summed_by_room(self):
        report = self.build / "tests.xml"
        report.write_text(REPORT, encoding="utf-8")
        self.assertEqual(timings.read_tests(report), {"comm": (2, 1.5), "core": (1, 0.25)})

    def test_the_sum_stands_beside_the_budget(self):
        (self.build / ".ninja_log").write_text(LOG, encoding="utf-8")
        (self.build / "tests.xml").write_text(REPORT, encoding="utf-8")
        self.assertIn("10 s of compiling, 2 s of testing", self.run_script().stdout)

    def test_a_build_without_a_report_says_what_to_do(self):
        result = self.run_script()
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("Run ./dev test first", result.stderr)


if __name__ == "__main__":
    unittest.main()
