#!/usr/bin/env python3
"""The API reference from the comments of the public headers: ./dev docs. Doxygen writes it; any warning of it is an error.

Each room is one page (a Doxygen topic) that lists its types and functions in the order of declaration, as designated
initialisers need it. The rooms and their descriptions come from the table in docs/ARCHITECTURE.md. Doxygen reads each header
through this script (--filter), which makes a header's opening comment its file page and puts all it declares into its room.
"""
import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SETTINGS = {
    "PROJECT_NAME": "hasten", "PROJECT_BRIEF": '"Training loops of libtorch on any number of processes"',
    "RECURSIVE": "YES", "FILE_PATTERNS": "*.h *.dox", "EXCLUDE_PATTERNS": "*/detail/*", "GENERATE_LATEX": "NO",
    # Specialisations of the standard library's templates, and what only our own templates use.
    "EXCLUDE_SYMBOLS": "std::* *::detail::* detail::*",
    "SORT_MEMBER_DOCS": "NO", "SORT_BRIEF_DOCS": "NO", "JAVADOC_AUTOBRIEF": "YES", "HAVE_DOT": "NO", "QUIET": "YES",
    "EXTRACT_ALL": "YES", "WARN_AS_ERROR": "FAIL_ON_WARNINGS", "WARN_IF_UNDOCUMENTED": "NO", "SHOW_INCLUDE_FILES": "YES",
    "FILTER_SOURCE_FILES": "NO", "INLINE_INFO": "NO", "GENERATE_TREEVIEW": "YES", "DISABLE_INDEX": "NO",
    "SHOW_NAMESPACES": "NO", "HIDE_UNDOC_RELATIONS": "YES", "USE_MDFILE_AS_MAINPAGE": "",
}


def room_of(path):
    """'comm' of include/hasten/comm/group/group.h; a header in no folder belongs to the room of its name, or to accelerator."""
    parts = Path(path).resolve().relative_to(ROOT / "include/hasten").parts
    if len(parts) > 1:
        return parts[0]
    stem = Path(parts[0]).stem
    return stem if (ROOT / "include/hasten" / stem).is_dir() else "accelerator"


def plain(prose):
    """Prose in which `<name>` is a placeholder and no HTML; code in backticks stays."""
    return "".join(part if part.startswith("`") else re.sub(r"<(?=\S)", r"\\<", part) for part in re.split(r"(`[^`]*`)", prose))


def filtered(path):
    """The header as Doxygen reads it."""
    text = Path(path).read_text(encoding="utf-8")
    opening = re.match(r"(?://[^\n]*\n)+", text)
    about = re.sub(r"(?m)^// ?", "", opening.group(0)).strip() if opening else ""
    include = Path(path).resolve().relative_to(ROOT / "include").as_posix()
    about = plain(about)
    page = f"/** @file {include}\n@ingroup {room_of(path)}\n\n{about}\n*/\n"
    body = re.sub(r"(?m)///(.*)$", lambda comment: "///" + plain(comment.group(1)), text[opening.end():] if opening else text)
    # Doxygen finds no scope for a specialisation in the standard library's namespace.
    body = re.sub(r"(?ms)^template <[^\n]*>\nstruct std::.*?^};\n", "", body)
    return f"{page}/** @addtogroup {room_of(path)}\n@{{ */\n{body}\n/** @}} */\n"


def rooms():
    """{room: description} of the rooms that have public headers, in the order of docs/ARCHITECTURE.md."""
    table = (ROOT / "docs/ARCHITECTURE.md").read_text(encoding="utf-8").partition("| room | holds |")[2].partition("\n\n")[0]
    found = dict(re.findall(r"(?m)^\| ([a-z_]+) \| ([^|]*) \|", table))
    return {room: text for room, text in found.items() if (ROOT / "include/hasten" / room).is_dir()}


def without_links(text):
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)


def topics():
    lines = ["/** @mainpage Reference", "", "One page a room, in the order in which rooms include each other. Programs include",
             "`hasten/hasten.h`, or `hasten/ROOM.h`, or single headers.", ""]
    for room, text in rooms().items():
        lines.append(f"- @ref {room} : {without_links(text)}")
    lines += ["*/", ""]
    for room, text in rooms().items():
        about = without_links(text)
        lines += [f"/** @defgroup {room} {room}", f"{about[0].upper()}{about[1:]}.", "*/", ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser(description="Writes the API reference of the public headers with Doxygen.")
    parser.add_argument("--filter", metavar="HEADER", help="print a header as Doxygen reads it")
    parser.add_argument("--out", default=ROOT / "build/docs", type=Path, help="folder of the pages (build/docs)")
    options = parser.parse_args()
    if options.filter:
        sys.stdout.write(filtered(options.filter))
        return 0
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    (out / "rooms.dox").write_text(topics(), encoding="utf-8")
    settings = {**SETTINGS, "INPUT": f"{ROOT / 'include/hasten'} {out / 'rooms.dox'}", "OUTPUT_DIRECTORY": str(out),
                "STRIP_FROM_PATH": str(ROOT / "include"), "STRIP_FROM_INC_PATH": str(ROOT / "include"),
                "FILTER_PATTERNS": f"\"*.h={sys.executable} {Path(__file__).resolve()} --filter\""}
    (out / "Doxyfile").write_text("".join(f"{key} = {value}\n" for key, value in settings.items()), encoding="utf-8")
    result = subprocess.run(["doxygen", out / "Doxyfile"], capture_output=True, text=True)
    sys.stderr.write(result.stderr)
    if result.returncode:
        warnings = len(re.findall(r"(?:error|warning):", result.stderr))
        print(f"docs: {warnings} warnings of doxygen. Correct the comments they name.", file=sys.stderr)
        return 1
    print(f"docs: {len(rooms())} rooms, {out / 'html/index.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
