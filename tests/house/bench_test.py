#!/usr/bin/env python3
"""The benchmark driver (bench/run) on made-up programs, whose figures are known."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Notes who was called, then prints the next of its figures.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
here = pathlib.Path({folder!r})
calls = here / "calls"
earlier = calls.read_text().split() if calls.exists() else []
calls.write_text(" ".join(earlier + [{name!r}]))
print("a line that is no figure")
print(json.dumps({figures!r}[earlier.count({name!r})]))
"""


class BenchTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        nodes = json.dumps({"first_round_ms": 7, "next_round_ms": 3, "memory_mb": 5})
        self.write("bench/bench_rendezvous", f"#!/bin/sh\necho '{nodes}'\n")
        self.write("bin/hasten", '#!/bin/sh\nshift 3\nexec "$@"\n')

    def write(self, path, text):
        file = self.folder / path
        file.parent.mkdir(exist_ok=True)
        file.write_text(text)
        file.chmod(0o755)
        return file

    def program(self, path, name, figures):
        return self.write(path, PROGRAM.format(folder=str(self.folder), name=name, figures=figures))

    def bench(self, *arguments, peers_python=None):
        environment = {name: value for name, value in os.environ.items() if name != "HASTEN_PEERS_PYTHON"}
        if peers_python:
            environment["HASTEN_PEERS_PYTHON"] = str(peers_python)
        return subprocess.run([sys.executable, ROOT / "bench" / "run", "--build", self.folder, *arguments],
                              env=environment, capture_output=True, text=True)

    def three_pairs(self):
        def memory(peak):
            return {"step_ms": 1, "peak_mb": peak, "start_mb": 50}

        self.program("bench/bench_ddp", "ours", [memory(100), memory(150), memory(300)])
        return self.program("peers/python", "peer", [memory(200), memory(200), memory(500)])

    def test_the_ratio_is_the_median_of_the_pairs_ratios(self):
        done = self.bench("memory", "--repeats", "3", "--json", peers_python=self.three_pairs())

        peak, over_start = json.loads(done.stdout)["rows"]
        self.assertEqual((peak["ours"], peak["peer"], peak["ratio"], peak["spread"], peak["repeats"]),
                         (150, 200, 0.6, [0.5, 0.75], 3))
        self.assertEqual((over_start["ours"], over_start["peer"]), (100, 150))

    def test_ours_and_the_peer_take_turns_in_going_first(self):
        self.bench("memory", "--repeats", "3", peers_python=self.three_pairs())

        self.assertEqual((self.folder / "calls").read_text(), "ours peer peer ours ours peer")

    def test_the_table_shows_what_was_measured(self):
        done = self.bench("memory", "--repeats", "3", peers_python=self.three_pairs())

        self.assertEqual(done.stdout.splitlines()[1:], [
            "name               ours  peer  unit  ratio  spread          goal     repeats  peer is",
            "memory_peak        150   200   MB    0.600  0.500 .. 0.750  <= 1.00  3        torch DDP",
            "memory_over_start  100   150   MB    0.556  0.333 .. 0.667  -        3        torch DDP",
        ])

    def test_without_a_python_for_the_peers_only_ours_is_run_and_said_to_be(self):
        self.three_pairs()

        done = self.bench("memory", "--repeats", "2")

        self.assertIn("memory_peak        125   -     MB    -      100 .. 150  <= 1.00  2", done.stdout)
        self.assertIn("Only ours was run: set HASTEN_PEERS_PYTHON", done.stdout)
        self.assertEqual((self.folder / "calls").read_text(), "ours ours")

    def test_the_first_collective_counts_from_the_launchers_start(self):
        done_s = "import json, time; print(json.dumps({{'done_s': time.time() + {later}}}))"
        self.write("bench/bench_first_collective", f"#!/usr/bin/env python3\n{done_s.format(later=100)}\n")
        python = self.write("peers/python", f"#!/usr/bin/env python3\n{done_s.format(later=1000)}\n")
        self.write("bin/hasten", '#!/bin/sh\nshift 3\ncase $1 in *.py) exec python3 "$@" ;; esac\nexec "$@"\n')

        done = self.bench("launch", "--repeats", "1", "--json", peers_python=python)

        rows = {row["name"]: row for row in json.loads(done.stdout)["rows"]}
        first = rows["launch_first_collective"]
        self.assertEqual((int(first["ours"]) // 100, int(first["peer"]) // 1000), (1, 1))
        script, more = rows["launch_script"], rows["launch_script_more"]
        self.assertEqual((more["ours"], more["peer"]), (script["ours"] - script["peer"], None))
        self.assertEqual([row["ours"] for name, row in rows.items() if name.startswith("rendezvous")], [7, 3, 5])

    def test_a_death_counts_until_the_slowest_of_the_others_has_noticed_it(self):
        self.write("bench/bench_death_noticed", """#!/bin/sh
case $HASTEN_BACKEND$RANK in
  *3) echo '{"died_ms": 1000}'; kill -9 $$ ;;
  gloo1) echo '{"noticed_ms": 1700}' ;;
  *) echo '{"noticed_ms": 1500}' ;;
esac
""")

        done = self.bench("death_noticed", "--repeats", "1", "--json")

        self.assertEqual([(row["name"], row["ours"], row["goal"]) for row in json.loads(done.stdout)["rows"]],
                         [("death_noticed", 500, 1000), ("death_noticed_gloo", 700, 1000)])

    def test_a_rank_that_notices_nothing_of_a_death_ends_the_run_with_its_words(self):
        self.write("bench/bench_death_noticed", "#!/bin/sh\necho no port >&2\nexit 1\n")

        done = self.bench("death_noticed")

        self.assertEqual(done.returncode, 1)
        self.assertIn("bench_death_noticed' printed no line of JSON, but:\nno port", done.stderr)

    def test_a_program_that_fails_ends_the_run_with_its_words(self):
        self.write("bench/bench_ddp", "#!/bin/sh\necho out of luck >&2\nexit 7\n")

        done = self.bench("memory")

        self.assertEqual(done.returncode, 1)
        self.assertIn("ended with exit code 7:\nout of luck", done.stderr)

    def test_a_program_that_is_not_built_is_named(self):
        done = self.bench("memory")

        self.assertEqual(done.returncode, 1)
        self.assertIn("bench/bench_ddp is not there. Build it first", done.stderr)

    def test_a_misspelt_name_gets_a_suggestion(self):
        done = self.bench("overhaed")

        self.assertEqual((done.returncode, done.stderr),
                         (2, "bench: unknown benchmark 'overhaed', did you mean 'overhead'?\n"))

    def test_no_repeats_are_refused(self):
        done = self.bench("memory", "--repeats", "0")

        self.assertEqual((done.returncode, done.stderr), (2, "bench: --repeats=0 is not at least 1.\n"))


if __name__ == "__main__":
    unittest.main()
