#!/usr/bin/env python3
"""Where ./dev test spends its time: seconds of compiling and of testing, per room and per test program.

Reads what a build and a test run leave behind: build/PRESET/.ninja_log (start and end of each command in milliseconds; the last
time of each output counts) and build/PRESET/tests.xml (JUnit, by ctest). Prints two tables and the sums against the budget of
docs/building.md. Seconds of compiling are of one core: with two at work the clock shows about half.
"""
import argparse
import re
import sys
import xml.etree.ElementTree
from collections import defaultdict
from pathlib import Path

# Minutes by the clock on two cores, from nothing (docs/building.md).
BUDGET_MIN = 35.0

GROUPS = [
    (re.compile(r"CMakeFiles/hasten_(\w+?)_(?:verify_interface_header_sets|header_check)\.dir/"), "{} headers"),
    (re.compile(r"CMakeFiles/hasten_(?:verify_interface_header_sets|header_check)\.dir/"), "hasten.h"),
    (re.compile(r"CMakeFiles/hasten_(\w+)_pch\.dir/"), "precompiled header {}"),
    (re.compile(r"CMakeFiles/hasten_(\w+)\.dir/"), "{}"),
    (re.compile(r"CMakeFiles/hasten\.dir/"), "library"),
    (re.compile(r"tests/CMakeFiles/(\w+)\.dir/|tests/(\w+_tests)(?:_\w+|\[\d+\]_\w+)?(?:\.cmake)?$"), "{}"),
    (re.compile(r"^(bench|examples|cli|self_test)/"), "{}"),
]


def group_of(output):
    """'comm', 'comm headers', 'comm_unit_tests' …; 'other' for what none of GROUPS knows."""
    for pattern, name in GROUPS:
        found = pattern.search(output)
        if found:
            return name.format(next((part for part in found.groups() if part), ""))
    return "other"


def read_build(path):
    """Seconds by group, each command once although it may have several outputs."""
    last = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            continue
        begin, end, _, output, command = line.split("\t")[:5]
        last[output] = (int(begin), int(end), command)
    seconds = defaultdict(float)
    for output, (begin, end, command) in {(span[0], span[1], span[2]): (output, span) for output, span in last.items()}.values():
        seconds[group_of(output)] += (end - begin) / 1000
    return dict(seconds)


def read_tests(path):
    """(number, seconds) by room: the part of a test's name before its first dot."""
    rooms = defaultdict(lambda: [0, 0.0])
    for case in xml.etree.ElementTree.parse(path).getroot().iter("testcase"):
        room = case.get("name", "?").split(".")[0]
        rooms[room][0] += 1
        rooms[room][1] += float(case.get("time", 0))
    return {room: tuple(values) for room, values in rooms.items()}


def table(head, rows):
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    for row in [head, *rows]:
        print("  ".join([row[0].ljust(widths[0]), *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]))


def main():
    parser = argparse.ArgumentParser(description="Seconds of compiling and testing, per room and per test program.")
    parser.add_argument("build", type=Path, help="the build folder, such as build/release")
    build = parser.parse_args().build
    log, report = build / ".ninja_log", build / "tests.xml"
    missing = [str(path) for path in (log, report) if not path.is_file()]
    if missing:
        sys.exit(f"timings: {', '.join(missing)} not there. Run ./dev test first.")
    compiled, tested = read_build(log), read_tests(report)
    table(("compiling", "seconds"), [(name, f"{value:.1f}") for name, value in sorted(compiled.items(), key=lambda item: -item[1])])
    print()
    table(("testing", "tests", "seconds"), [(room, str(number), f"{value:.1f}")
                                            for room, (number, value) in sorted(tested.items(), key=lambda item: -item[1][1])])
    total_build, total_tests = sum(compiled.values()), sum(value for _, value in tested.values())
    clock = (total_build + total_tests) / 2 / 60
    print(f"\n{total_build:.0f} s of compiling, {total_tests:.0f} s of testing: about {clock:.1f} minutes on two cores; "
          f"the budget is {BUDGET_MIN:.0f} (docs/building.md)")


if __name__ == "__main__":
    main()
