#!/usr/bin/env python3
"""Starts a concept of a room in all its places: header, source, test, document. ./dev new ROOM[/SUB-ROOM] CONCEPT

The files compile and the test fails, so that nothing half-written passes for done. Rooms are those of CMakeLists.txt.
"""
import argparse
import difflib
import re
import sys
from pathlib import Path

HEADER = '''// {words}: what it is, in one sentence.
//
// Why this way; what it leaves to which other file.
#pragma once

namespace {namespace} {{

/// What it means for the caller: shapes, units, the default and its reason, ownership.
class {type} {{
 public:
  /// Collective: no. Blocks: no. Throws: never.
  {type}();
}};

}}  // namespace {namespace}
'''

SOURCE = '''// {words}; see {concept}.h.
#include "hasten/{room}/{concept}.h"

namespace {namespace} {{

{type}::{type}() = default;

}}  // namespace {namespace}
'''

TEST = '''#include "hasten/{room}/{concept}.h"

#include <gtest/gtest.h>

namespace {namespace} {{
namespace {{

TEST({type}, KeepsItsFirstClaim) {{
  const {type} {concept};

  FAIL() << "arrange, act, and assert the first claim about {type} here";
}}

}}  // namespace
}}  // namespace {namespace}
'''

DOCUMENT = '''# {words}

What it is for, the shortest program that uses it, and its options (default, unit, cost).

## How it works

## Limits
'''


def stop(text):
    print(f"./dev new: {text}", file=sys.stderr)
    sys.exit(2)


def main():
    parser = argparse.ArgumentParser(prog="./dev new", description="Starts a concept: header, source, test, document.")
    parser.add_argument("room", metavar="ROOM", help="a room of CMakeLists.txt, or a sub-room of it: comm, comm/mesh")
    parser.add_argument("concept", metavar="CONCEPT", help="its name in snake_case")
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parent.parent, help=argparse.SUPPRESS)
    options = parser.parse_args()
    folder, concept = options.room.strip("/"), options.concept
    room = folder.split("/")[0]

    rooms = re.findall(r"^hasten_room\((\w+)", (options.root / "CMakeLists.txt").read_text(encoding="utf-8"), re.MULTILINE)
    if room not in rooms:
        near = difflib.get_close_matches(room, rooms, 1)
        hint = f", did you mean '{near[0]}'?" if near else "."
        stop(f"unknown room '{room}'{hint} The rooms are {', '.join(rooms)}; a new one begins in CMakeLists.txt.")
    if not re.fullmatch(r"[a-z][a-z0-9]*(_[a-z0-9]+)*", concept):
        stop(f"'{concept}' is no snake_case name such as gradient_state.")

    words = concept.replace("_", " ").capitalize()
    names = {
        "room": folder,
        "concept": concept,
        "words": words,
        "type": "".join(part.capitalize() for part in concept.split("_")),
        "namespace": "hasten" if room == "core" else f"hasten::{room}",
    }
    files = {
        f"include/hasten/{folder}/{concept}.h": HEADER,
        f"src/{folder}/{concept}.cpp": SOURCE,
        f"tests/{folder}/{concept}_test.cpp": TEST,
        f"docs/{folder}/{concept}.md": DOCUMENT,
    }
    existing = [path for path in files if (options.root / path).exists()]
    if existing:
        stop(f"'{concept}' exists already: {', '.join(existing)}.")
    for path, template in files.items():
        (options.root / path).parent.mkdir(parents=True, exist_ok=True)
        (options.root / path).write_text(template.format(**names), encoding="utf-8")
        print(path)


if __name__ == "__main__":
    main()
