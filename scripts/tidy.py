#!/usr/bin/env python3
"""Checks the project's own rules (docs/STYLE.md) that no compiler checks: ./dev tidy, and the test house.tidy.

Each rule is one function that takes the Tree and yields findings; RULES lists them all. Which room may include which
is read from CMakeLists.txt (hasten_room(… ROOMS …)), so that the arrows are written down once.
tests/house/tidy_test.py shows for every rule that it can fail.
"""
import argparse
import itertools
import re
import sys
from dataclasses import dataclass
from pathlib import Path

HEADER_CAP, SOURCE_CAP = 300, 600
# Files that forward and decide nothing; they may be as long as Accelerate has names.
FRONT_DOOR = ("include/hasten/accelerator.h", "src/accelerator.cpp")
# Files that together stay under a number of lines of code (blank lines and comments aside).
COUNTED_TOGETHER = [
    ("the DDP reducer, the hooks aside,", 540, ["src/parallel/ddp/bucket.*", "src/parallel/ddp/reducer.*"]),
]
# What the command may include; it is no room of CMakeLists.txt's.
CLI_MAY_INCLUDE = {"core", "files", "plan", "tracking", "launch"}
# Rooms whose private headers are for all rooms that may include them, and for no program.
OPEN_INSIDE = {"compat"}
# Headers that need no test file of their own name, each with its reason.
UNTESTED = {
    "include/hasten/hasten.h": "only includes other headers",
    "include/hasten/comm/backend/backend.h": "an interface; its implementations are tested through Group",
}
# Words in capitals that look like variables of the environment and are none.
# dtypes and a key of safetensors, zip's padding, PyTorch's name of an option, cuDNN's word for a lack of memory
NO_VARIABLES = {"F8_E4M3", "F8_E5M2", "F8_E8M0", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "DCP_SHARDING_INFO", "FB", "DCP_VERSION", "T_0", "CUDNN_STATUS_NOT_SUPPORTED"}
# … and values that stand in Accelerate's configuration files.
NO_VARIABLES |= set("""
    AMAZON_SAGEMAKER AOT_EAGER AOT_TS_NVFUSER ATTN_IMPLEMENTATION BACKWARD_POST BACKWARD_PRE DATA_PARALLEL FULL_SHARD
    FULL_STATE_DICT HYBRID_SHARD HYBRID_SHARD_ZERO2 LOCAL_MACHINE LOCAL_STATE_DICT MEGATRON_LM MODEL_PARALLEL MULTI_CPU MULTI_GPU MULTI_HPU
    MULTI_MLU MULTI_MUSA MULTI_NEURON MULTI_NPU MULTI_SDAA MULTI_XPU NO_PREFETCH NO_SHARD NO_WRAP NVPRIMS_NVFUSER
    SEQ_LENGTH SEQ_LENGTH_IS_VARIABLE SHARDED_STATE_DICT SHARD_GRAD_OP SIZE_BASED_WRAP TRANSFORMER_BASED_WRAP""".split())

CODE_FOLDERS = ("include", "src", "cli", "self_test", "examples", "bench", "tests")
SHIPPED = ("include", "src", "cli")


@dataclass
class Finding:
    path: str
    line: int
    text: str

    def __str__(self):
        return f"{self.path}:{self.line}: {self.text}"


def blank_out(text, strings):
    """The text with comments (and, if asked, string contents) replaced by blanks; line numbers stay."""
    pattern = re.compile(r'//[^\n]*|/\*.*?\*/|'
                         r'R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])\'',
                         re.DOTALL)

    def blank(match):
        found = match.group(0)
        if found.startswith("/") or strings:
            return re.sub(r"[^\n]", " ", found)
        return found

    return pattern.sub(blank, text)


class Source:
    """One C++ file: its path from the root, its text, and the text without comments (and strings)."""

    def __init__(self, root, path):
        self.path = path.relative_to(root).as_posix()
        self.text = path.read_text(encoding="utf-8")
        self.lines = self.text.splitlines()
        self.without_comments = blank_out(self.text, strings=False)
        self.code = blank_out(self.text, strings=True)
        self.num_code_lines = sum(bool(line.strip()) for line in self.without_comments.splitlines())
        self.is_header = self.path.endswith(".h")

    def find(self, pattern, text=None):
        """(line number, match) of each place where the pattern stands in the code."""
        text = self.code if text is None else text
        for match in re.finditer(pattern, text):
            yield text.count("\n", 0, match.start()) + 1, match

    def includes(self):
        return self.find(r'(?m)^[ \t]*#[ \t]*include[ \t]*["<]([^">]+)[">]', self.without_comments)

    @property
    def shipped(self):
        return self.path.split("/")[0] in SHIPPED

    @property
    def room(self):
        """core, comm …; "cli"; "front door" for what stands in no room; None for tests and examples."""
        parts = self.path.split("/")
        if parts[0] == "cli":
            return "cli"
        if parts[0] == "src":
            return parts[1] if len(parts) > 2 else "front door"
        if parts[:2] == ["include", "hasten"]:
            return parts[2] if len(parts) > 3 else "front door"
        return None


class Tree:
    def __init__(self, root):
        self.root = Path(root)
        self.sources = [Source(self.root, path) for folder in CODE_FOLDERS
                        for path in sorted((self.root / folder).rglob("*"))
                        if path.suffix in (".h", ".cpp") and path.is_file()]
        self.paths = {source.path for source in self.sources}
        self.rooms = {}        # name -> rooms it may include, in the order of CMakeLists.txt
        self.torch_rooms = set()
        cmake = (self.root / "CMakeLists.txt").read_text(encoding="utf-8")
        for match in re.finditer(r"^hasten_room\((\w+)((?:[^()]|\$<[^>]*>)*)\)", cmake, re.MULTILINE):
            words = match.group(2).split()
            named = words[words.index("ROOMS") + 1:] if "ROOMS" in words else []
            self.rooms[match.group(1)] = set(itertools.takewhile(str.islower, named))
            if "TORCH" in words:
                self.torch_rooms.add(match.group(1))

    def read(self, path):
        file = self.root / path
        return file.read_text(encoding="utf-8") if file.is_file() else None


def arrows(tree):
    """A room includes only the rooms that CMakeLists.txt gives it, and those only by their public headers."""
    seen = set()
    for room, may in tree.rooms.items():
        for unknown in sorted(may - seen - {"front_door"}):
            yield Finding("CMakeLists.txt", 1, f"room '{room}' names '{unknown}', which is no room above it")
        seen.add(room)
    for source in tree.sources:
        if not source.shipped:
            continue
        for line, match in source.includes():
            public = match.group(1).startswith("hasten/")
            folders = match.group(1).removeprefix("hasten/").split("/")[:-1]
            target = folders[0] if folders else "front door" if public else None
            if target not in (*tree.rooms, "front door") or target == source.room:
                continue
            may = CLI_MAY_INCLUDE if source.room == "cli" else tree.rooms.get(source.room, set())
            if source.room != "front door" and target.replace(" ", "_") not in may:
                yield Finding(source.path, line, f"room '{source.room}' may not include '{target}' ({match.group(1)})")
            elif not public and target not in OPEN_INSIDE:
                yield Finding(source.path, line, f"'{match.group(1)}' is private to room '{target}'")


def sizes(tree):
    for source in tree.sources:
        cap = HEADER_CAP if source.is_header else SOURCE_CAP
        if len(source.lines) > cap and source.path not in FRONT_DOOR:
            yield Finding(source.path, cap + 1, f"{len(source.lines)} lines; the cap is {cap}. Does it hold two concepts?")
    for what, cap, patterns in COUNTED_TOGETHER:
        members = {path.relative_to(tree.root).as_posix() for pattern in patterns for path in tree.root.glob(pattern)}
        total = sum(source.num_code_lines for source in tree.sources if source.path in members)
        if total >= cap:
            yield Finding(sorted(members)[0], 1, f"{what} has {total} lines of code in {len(members)} files; under {cap}")


def front_door_forwards(tree):
    """No decision but those of the compiler, and no base class: the components decide."""
    for source in tree.sources:
        if source.path not in FRONT_DOOR:
            continue
        for line, match in source.find(r"\b(?:if|for|while|switch)\b(?!\s*constexpr)|(?<=\s)\?(?=\s)"):
            yield Finding(source.path, line, f"'{match.group(0)}' in the front door, which only forwards; a component decides")
        for line, _ in source.find(r"\bclass\s+Accelerator\s*(?:final\s*)?:"):
            yield Finding(source.path, line, "Accelerator has a base class; compose it of components")


def environment_in_core(tree):
    for source in tree.sources:
        if source.shipped and source.room != "core":
            for line, match in source.find(r"\b(?:(?:secure_)?getenv|setenv|unsetenv|putenv|environ)\b"):
                yield Finding(source.path, line, f"{match.group(0)} outside core; take a hasten::Environment")


def fmt_apart_from_torch(tree):
    """fmt's and spdlog's headers cannot be compiled beside libtorch, which carries another fmt."""
    for source in tree.sources:
        for line, match in source.includes():
            if match.group(1).split("/")[0] not in ("spdlog", "fmt") or source.room is None:
                continue
            if source.is_header or source.room == "front door" or source.room in tree.torch_rooms:
                yield Finding(source.path, line, f"<{match.group(1)}> belongs in a .cpp of a room without libtorch")


def no_using_namespace_in_headers(tree):
    for source in tree.sources:
        if source.is_header:
            for line, _ in source.find(r"\busing\s+namespace\b"):
                yield Finding(source.path, line, "using namespace in a header")


def no_conditions_in_public_headers(tree):
    for source in tree.sources:
        if source.path.startswith("include/"):
            for line, match in source.find(r"(?m)^[ \t]*#[ \t]*(?:if|ifdef|ifndef)\b"):
                yield Finding(source.path, line, f"{match.group(0).strip()} in a public header; a stub file decides, not a macro")


def c10d_in_comm(tree):
    for source in tree.sources:
        if not source.shipped or source.room == "comm":
            continue
        for line, _ in source.find(r"\bnamespace\s+c10d\b|\bc10d\s*::"):
            yield Finding(source.path, line, "c10d outside comm; use comm::Group")
        for line, match in source.includes():
            if source.room == "rpc" and re.match(r"torch/csrc/distributed/(rpc|autograd)/", match.group(1)):
                continue  # libtorch's distributed autograd, which is no collective
            if match.group(1).startswith("torch/csrc/distributed"):
                yield Finding(source.path, line, f"<{match.group(1)}> outside comm; use comm::Group")


def every_concept_has_its_test(tree):
    """A header has a test file of its name in its room's folder, or is included by one there, or is a part (options,
    traits) that such a header includes itself."""
    headers = {source.path: source for source in tree.sources if source.path.startswith("include/hasten/")}
    room = {path: "accelerator" if header.room == "front door" else header.room for path, header in headers.items()}

    def included_by(source):
        return {f"include/{match.group(1)}" for _, match in source.includes()} & headers.keys()

    tested = set(UNTESTED)
    for test in tree.sources:
        parts = re.fullmatch(r"tests/(\w+)/(?:\w+/)*(\w+)_test\.cpp", test.path)
        if parts:
            tested |= {path for path in headers if room[path] == parts.group(1) and (
                path in included_by(test) or f"{parts.group(2)}_".startswith(f"{Path(path).stem}_"))}
    parts_of_tested = {part for path in tested & headers.keys() for part in included_by(headers[path])
                       if room[part] == room[path]}
    for path in sorted(headers.keys() - tested - parts_of_tested):
        yield Finding(path, 1, f"no tests/{room[path]}/{Path(path).stem}_test.cpp, nor another test there that includes it")


def sources_mirror_headers(tree):
    """A source belongs to a header: that of its name, or, where one header has several sources, one of its room's."""
    for source in tree.sources:
        parts = source.path.split("/")
        if parts[0] != "src" or len(parts) < 3 or source.is_header:
            continue
        room, folder = parts[1], source.path.rsplit("/", 1)[0]
        if not any(match.group(1).startswith((f"{room}/", f"hasten/{room}/")) or f"{folder}/{match.group(1)}" in tree.paths
                   for _, match in source.includes()):
            yield Finding(source.path, 1, f"has no header include/hasten/{room}/….h or src/{room}/….h")


def files_open_with_a_comment(tree):
    for source in tree.sources:
        if not source.path.startswith("tests/") and not source.text.startswith("//"):
            yield Finding(source.path, 1, "opens without a comment: what it is, why this way, what it leaves to whom")


def flags_are_frozen(tree):
    if any(source.room == "cli" for source in tree.sources) and tree.read("tests/cli/flags.txt") is None:
        yield Finding("tests/cli/flags.txt", 1, "missing: the one list of the command's flags")


def environment_is_documented(tree):
    """docs/environment.md lists, in the first column of its tables, exactly the variables that stand in the code."""
    document = tree.read("docs/environment.md")
    if document is None:
        yield Finding("docs/environment.md", 1, "missing: the list of all variables")
        return
    documented = {}
    for number, line in enumerate(document.splitlines(), 1):
        if line.startswith("|"):
            for name in re.findall(r"`([A-Z][A-Za-z0-9_]+)`", line.split("|")[1]):
                documented[name] = number
    read = r'(?:\.|->)(?:has|text|integer|real|flag|choice)\(\s*"([A-Z][A-Za-z0-9_]*)"'
    named = r'"([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)"'
    used = set()
    for source in tree.sources:
        if source.shipped:
            for pattern in (read, named):
                for line, match in source.find(pattern, source.without_comments):
                    name = match.group(1)
                    if name not in documented and name not in used | NO_VARIABLES:
                        yield Finding(source.path, line, f"{name} is not in docs/environment.md")
                    used.add(name)
    elsewhere = "".join(tree.read(path) or "" for path in ("dev", "bench/run", "cmake/FindLibtorch.cmake"))
    elsewhere += "".join(source.without_comments for source in tree.sources if not source.shipped)
    for name, number in documented.items():
        if name not in used and not re.search(rf"\b{name}\b", elsewhere):
            yield Finding("docs/environment.md", number, f"{name} is read nowhere")


def documents_name_files_that_are_there(tree):
    """Links to files of the project, and paths in backticks (src/comm/store/store.cpp; not patterns such as src/ROOM/X.cpp)."""
    folders = "|".join((*CODE_FOLDERS, "cmake", "docs", "scripts"))
    for document in [*sorted(tree.root.glob("*.md")), *sorted(tree.root.glob("docs/**/*.md"))]:
        name = document.relative_to(tree.root).as_posix()
        for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
            targets = [(target, document.parent) for target in re.findall(r"\]\(([^)#]+)[^)]*\)", line) if "://" not in target]
            targets += [(target, tree.root) for target in re.findall(rf"`((?:{folders})/[a-z0-9_./-]*)`", line)]
            for target, base in targets:
                if not (base / target).exists():
                    yield Finding(name, number, f"'{target}' is not there")


RULES = [arrows, sizes, front_door_forwards, environment_in_core, fmt_apart_from_torch, no_using_namespace_in_headers,
         no_conditions_in_public_headers, c10d_in_comm, every_concept_has_its_test, sources_mirror_headers,
         files_open_with_a_comment, flags_are_frozen, environment_is_documented, documents_name_files_that_are_there]


def main():
    parser = argparse.ArgumentParser(description="Checks the rules of docs/STYLE.md that no compiler checks.")
    parser.add_argument("--root", default=Path(__file__).resolve().parent.parent)
    tree = Tree(parser.parse_args().root)
    findings = [(rule, finding) for rule in RULES for finding in rule(tree)]
    for rule, finding in findings:
        print(f"{finding} [{rule.__name__}]")
    print(f"tidy: {len(RULES)} rules, {len(tree.sources)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
