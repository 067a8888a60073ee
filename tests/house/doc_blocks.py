"""Writes one C++ source that holds the C++ blocks of README.md and docs/, for the compiler's syntax check.

A block of declarations (a class, a function, a whole program) stands at namespace scope, any other in a function. A
page has a namespace of its own. It begins with tests/house/doc_blocks/names.inc and PAGE.inc of that folder, if there is
one: the names that a page takes as known, such as a network. "…" stands for code that is left out. A line of it
between declarations and statements splits a block. Errors of the compiler name the page and its line.

    doc_blocks.py REPOSITORY OUTPUT

docs/tutorial.md is left out: its blocks are parts of examples/tutorial.cpp, which another test compares.
"""
import pathlib
import re
import sys

FENCE = re.compile(r"^```(?:cpp|c\+\+)[^\n]*\n(.*?)^```", re.M | re.S)
DECLARATION = re.compile(r"^(?:class|struct|template|enum|int main\(|[\w:<>,& ]*[\w>&] \w+\([^;=]*\) \{)", re.M)
LEFT_OUT = {"tutorial"}


def segments(page_text):
    """Yields (line, text) of each block; of each part, where "…" stands between declarations and statements."""
    for match in FENCE.finditer(page_text):
        line = page_text[:match.start(1)].count("\n") + 1
        begin, lines = line, []
        is_split = DECLARATION.search(match.group(1))
        for number, text in enumerate(match.group(1).splitlines(), line):
            if text == "…" and is_split:
                yield begin, "\n".join(lines)
                begin, lines = number + 1, []
            else:
                lines.append(text)
        yield begin, "\n".join(lines)


def translate(path, name):
    """Returns the includes of a page's blocks and the code of the blocks."""
    includes, parts = [], []
    for line, text in segments(path.read_text(encoding="utf-8")):
        includes += re.findall(r"^#include .*$", text, re.M)
        text = re.sub(r"^#include .*$", "", text, flags=re.M)
        text = re.sub(r"^( *)…$", r"\1;", text, flags=re.M).replace("…", "{}")
        text = text.replace("int main(", f"int main_{line}(")
        if not text.strip():
            continue
        located = f'#line {line} "{name}"\n{text}\n'
        if not DECLARATION.search(text):
            located = f"void block_{line}() {{\n{located}}}\n"
        parts.append(located)
    return includes, "".join(parts)


def main(repository, output):
    root = pathlib.Path(repository).resolve()
    names = root / "tests/house/doc_blocks"
    includes, code = [], []
    for path in [root / "README.md", *sorted((root / "docs").rglob("*.md"))]:
        if path.stem in LEFT_OUT or not FENCE.search(path.read_text(encoding="utf-8")):
            continue
        own = names / f"{path.stem}.inc"
        of_page, blocks = translate(path, str(path.relative_to(root)))
        includes += of_page
        of_own = f'#include "{own}"\n' if own.exists() else ""
        space = "page_" + re.sub(r"\W", "_", path.stem)
        code.append(f'namespace {space} {{\n#include "{names / "names.inc"}"\nnamespace own {{\n{of_own}{blocks}}}\n}}\n')
    source = "\n".join(["// Made by tests/house/doc_blocks.py.", f'#include "{names / "includes.h"}"', *sorted(set(includes)), *code])
    pathlib.Path(output).write_text(source, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
