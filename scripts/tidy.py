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
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

HEADER_CAP, SOURCE_CAP = 300, 600
FOLDER_CAP = 40  # files of one folder of the library
# Files that forward and decide nothing; they may be as long as Accelerate has names.
FRONT_DOOR = ("include/hasten/accelerator.h", "src/accelerator/accelerator.cpp")
# Headers in no room's folder that have another name than their room.
LOOSE_HEADERS = {"hasten.h": "all rooms", "clip_grad_norm_async.h": "accelerator"}
# Files that together stay under a number of lines of code (blank lines and comments aside).
COUNTED_TOGETHER = [
    ("the DDP reducer, the hooks aside,", 540, ["src/parallel/ddp/bucket.*", "src/parallel/ddp/reducer.*"]),
]
# What the command may include; it is no room of CMakeLists.txt's.
CLI_MAY_INCLUDE = {"core", "files", "settings", "plan", "tracking", "flight", "launch"}
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

# Where a program comes in and its environment is read.
ENTRIES = {"include/hasten/comm/init_method.h", "include/hasten/files/hub/hub.h", "include/hasten/launch/config/basic_config.h", "include/hasten/learner/pretrained.h", "include/hasten/process/device.h", "include/hasten/process/process.h", "src/accelerator/accelerator.cpp", "src/checkpoint/load_run.cpp", "src/comm/group/group.cpp", "src/launch/run/launch.cpp", "src/learner/learner_construction.cpp", "src/python/group.cpp", "src/python/tracking.cpp"}
# Mutable state of the whole process, each with its reason.
GLOBAL_STATE = {
    "src/core/log.cpp": "a program's own log takes the lines of all loggers of the process",
    "src/python/group.cpp": "a process is watched once, from its first group to its end",
    "src/python/log.cpp": "Python's logging is one for the process",
    "src/plugins/flops_report.cpp": "the counts of the thread that is profiled; libtorch's callback is a plain function",
    "src/flight/recorder.cpp": "a child of fork() must know its parent's pages; scopes of the program's own have no handle; the thread's id",
    "src/flight/stacks.cpp": "the handler of a signal is one for the process",
    "cli/verify_run.cpp": "the handler of a signal is one for the process",
    "src/training/verify_recorder.cpp": "a run under hasten verify has one record a process, which loaders without an Accelerator write to",
    "src/checkpoint/save/writer_thread.cpp": "the process waits at its exit for all writers",
    "src/precision/unsupported.cpp": "autocast's lists are one for the process",
    "src/comm/backend/mpi.cpp": "MPI is initialised once in a process, and by nobody else's count",
    "src/comm/types/call_label.cpp": "the words of the call that the thread makes",
    "src/comm/types/purpose.cpp": "the words of the scope that the thread is in",
    "src/comm/backend/device_backend.cpp": "tests put a double in the place of NCCL, which a process has once",
    "src/comm/group/recorded_call.cpp": "the call that the thread is in, whose end its transfers take over",
    "src/python/errors.cpp": "Python's signals are the main thread's, and come as its exceptions",
    "src/process/rejoining.cpp": "a process has one place among ranks that are replaced",
    "src/process/run_watch.cpp": "a process has one page in a world of one, which all Process objects share",
    "src/comm/gloo/gloo.cpp": "operations of libtorch's Gloo before 2.13 must start one after the other in a process",
    "src/comm/store/quiet_log.cpp": "libtorch's log has one level for the process",
    "src/comm/shared/memory/segment.cpp": "segments of this process that a signal's handler or a fork must know",
    "src/compat/storage_watch.cpp": "libtorch holds one materializer a storage",
    "src/data/dataset/pinned_rows.h": "whether the fetch of the thread goes to a device; datasets have no argument for it",
    "src/data/dataset/image_folder.cpp": "memory of the worker's thread, used again for the next image",
    "src/data/loader/detail/staging.cpp": "a device's stream for copies, which all loaders of the process share",
    "src/data/image/read_image.cpp": "memory of the worker's thread, used again for the next file",
    "src/data/image/image_transform.cpp": "memory of the worker's thread, used again for the next image",
    "src/data/sampler/detail/sampler_stream.cpp": "torch's default generator is one for the process",
    "src/data/sampler/worker_random.cpp": "the generator of the worker's thread, as torch.utils.data.get_worker_info",
    "src/files/base/source_file.cpp": "descriptors are the process's, so their number is bounded for all sources at once",
    "src/files/disk/disk.cpp": "the file system is one; the object that stands for it holds nothing",
    "src/interception/interceptor.cpp": "dispatch keys have one kernel an operator in a process",
    "src/memory/allocator.cpp": "libtorch has one CPU allocator",
    "src/offload/load/device_run.cpp": "where the thread's last weight has computed, as the module whose forward it is in",
    "src/offload/units/peer_copies.cpp": "ways between the devices of a process, which are tried once",
    "src/offload/hooks/hook_site.cpp": "the module whose forward the thread is in",
    "src/offload/hooks/script_hooks.cpp": "a class of TorchScript is one for all scripts of the process that have it",
    "src/offload/units/named_memory.cpp": "the handler of SIGSEGV is one for the process",
    "src/parallel/ddp/gradient_allocator.cpp": "libtorch has one CPU allocator; what is open is the thread's",
    "src/parallel/recompute/engine.cpp": "libtorch has one autograd engine",
    "src/parallel/pipeline/forward_pass.cpp": "forwards under way are the thread's, as autograd's modes",
    "src/parallel/pipeline/weight_queue.cpp": "backwards under way are the thread's, as autograd's modes",
    "src/parallel/tensor/cut_axis.cpp": "numbers of axes, of which a thread's running ones are a set of bits",
    "src/parallel/tensor/handler.cpp": "forwards under way are the thread's, as autograd's modes",
    "src/parallel/tensor/rules.cpp": "rules under way are the thread's, as autograd's modes",
    "src/parallel/recompute/recorder.cpp": "regions are the thread's, as autograd's modes",
    "src/parallel/recompute/replay.cpp": "the thread's call that is replayed, and a count",
    "src/precision/autocast.cpp": "autocast's scopes are the thread's, as in libtorch",
    "src/process/failure_reporter.cpp": "std::terminate has one handler",
    "src/rpc/engine/engine_bridge.cpp": "libtorch's container of autograd contexts knows one rank, for the life of the process",
    "src/rpc/calls.cpp": "the agent whose call the thread serves",
    "src/rpc/receive_buffers.cpp": "libtorch's tensors keep a pointer to their allocator",
    "src/process/process.cpp": "a second Process of a program cannot open rank 0's port again",
}
# Destructors that wait for threads of their own.
WAITING_DESTRUCTORS = {
    "src/flight/watcher.cpp": "its own thread, which it wakes before",
    "src/comm/connecting/peer_connections.cpp": "its own thread, which it wakes before",
    "src/comm/shared/algorithms/queue.cpp": "its own thread, which it wakes before",
}
# Cycles of units that are to go; the list may only shrink.
KNOWN_CYCLES = []
# Pronouns as actors, sentences that begin with a relative clause, and verbs of persons (docs/STYLE.md, Comments).
BANNED = re.compile(r"\b(?:[Ww]hoever|[Nn]obody|[Ss]omebody|[Ww]ho|born|lent|harms?|is told|are told|was told|were told|gives away)\b"
                    r"|(?:^|[.:] )\s*(?:What (?:is|are|a|an|the|it|they)|Who) ")
# Names of persons' doings and of this project alone, in identifiers (docs/STYLE.md, Names).
BANNED_NAMES = re.compile(r"\b(?:patience|said|told|say|asked|wanted|keeper|whom|Kept|Sight|HandOn|Filler|ShardFront|LentGradients"
                          r"|become_shim|come_back|has_left|leave_to_others|show_region|tell_of_change|gradients_came|is_born_here"
                          r"|may_be_born)_?\b")
# Arguments of PyTorch's ReduceLROnPlateau and fastai's callbacks, which keep their names.
PEERS_NAMES = {"patience": re.compile(r"optim/schedulers/plateau|learner/callbacks/tracker")}
# The longest sentence, in words; code in backticks and quotations count as one, a Throws line by its clauses.
MAX_WORDS = 25
# Files of others that comments name.
FOREIGN_FILES = {"jpeglib.h", "train.cpp"}

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
        """core, comm …; "cli"; "all rooms" for what stands in no room; None for tests and examples."""
        parts = self.path.split("/")
        if parts[0] == "cli":
            return "cli"
        if parts[0] == "src":
            return parts[1] if len(parts) > 2 else "all rooms"
        if parts[:2] == ["include", "hasten"]:
            return parts[2] if len(parts) > 3 else LOOSE_HEADERS.get(parts[2], parts[2].removesuffix(".h"))
        return None


class Tree:
    def __init__(self, root):
        self.root = Path(root)
        self.sources = [Source(self.root, path) for folder in CODE_FOLDERS
                        for path in sorted((self.root / folder).rglob("*"))
                        if path.suffix in (".h", ".cpp") and path.is_file()]
        self.paths = {source.path for source in self.sources}
        self.rooms = {}        # name -> rooms it may include, in the order of CMakeLists.txt
        self.parts = {}        # name -> its sub-rooms, each after those it may include; "." is the room's own folder
        self.torch_rooms = set()
        cmake = (self.root / "CMakeLists.txt").read_text(encoding="utf-8")
        for match in re.finditer(r"^hasten_room\((\w+)((?:[^()]|\$<[^>]*>)*)\)", cmake, re.MULTILINE):
            words = match.group(2).split()
            named = words[words.index("ROOMS") + 1:] if "ROOMS" in words else []
            self.rooms[match.group(1)] = set(itertools.takewhile(str.islower, named))
            if "PARTS" in words:
                parts = list(itertools.takewhile(lambda word: not word.isupper(), words[words.index("PARTS") + 1:]))
                self.parts[match.group(1)] = parts if "." in parts else [".", *parts]
            if "TORCH" in words:
                self.torch_rooms.add(match.group(1))
        # The Python module, which cmake/HastenPython.cmake builds: it comes last and may include all rooms.
        if any(source.room == "python" for source in self.sources):
            self.rooms["python"] = set(self.rooms)
            self.torch_rooms.add("python")

    def read(self, path):
        file = self.root / path
        return file.read_text(encoding="utf-8") if file.is_file() else None


def arrows(tree):
    """A room includes only the rooms, or single headers of a room, that CMakeLists.txt gives it, and those only by their
    public headers."""
    seen = set()
    for room, may in tree.rooms.items():
        for unknown in sorted(name for name in may - seen if "/" not in name):
            yield Finding("CMakeLists.txt", 1, f"room '{room}' names '{unknown}', which is no room above it")
        seen.add(room)
    for source in tree.sources:
        if not source.shipped:
            continue
        for line, match in source.includes():
            public = match.group(1).startswith("hasten/")
            name = match.group(1).removeprefix("hasten/")
            folders = name.split("/")[:-1]
            target = folders[0] if folders else name.removesuffix(".h") if public else None
            if target not in (*tree.rooms, "hasten") or target == source.room:
                continue
            may = CLI_MAY_INCLUDE if source.room == "cli" else tree.rooms.get(source.room, set())
            if source.room != "all rooms" and target not in may and not (public and name in may):
                yield Finding(source.path, line, f"room '{source.room}' may not include '{target}' ({match.group(1)})")
            elif not public and target not in OPEN_INSIDE:
                yield Finding(source.path, line, f"'{match.group(1)}' is private to room '{target}'")


def unit_of(path):
    """A header and its source are one unit, and so is the private header of its hidden implementation (X_impl.h)."""
    unit = re.sub(r"^(?:include/|src/)?(?:hasten/)?", "", path).rsplit(".", 1)[0]
    return unit if "hasten/" in path else re.sub(r"_impl$", "", unit)


def includes_inside_rooms(tree):
    """(source, line, unit of the source, unit that it includes), both of one room and not the same; a room's own header,
    include/hasten/ROOM.h, is no unit."""
    for source in tree.sources:
        if not source.shipped or source.room in ("cli", "all rooms"):
            continue
        for line, match in source.includes():
            mine, other = unit_of(source.path), unit_of(match.group(1))
            if other.split("/")[0] == source.room and other != mine and "/" in other and "/" in mine:
                yield source, line, mine, other


def parts_in_order(tree):
    """A sub-room includes only those that CMakeLists.txt names before it (hasten_room(… PARTS …))."""
    def part_of(unit, parts):
        inside = unit.split("/", 1)[1]
        return max((part for part in parts if part != "." and inside.startswith(part + "/")), key=len, default=".")

    for source, line, mine, other in includes_inside_rooms(tree):
        parts = tree.parts.get(source.room)
        if parts and parts.index(part_of(other, parts)) > parts.index(part_of(mine, parts)):
            yield Finding(source.path, line, f"sub-room '{part_of(mine, parts)}' may not include '{part_of(other, parts)}', "
                                             f"which comes after it in CMakeLists.txt ({other})")


def rooms_and_parts_have_files(tree):
    """A room, and a sub-room of PARTS, stands in CMakeLists.txt from its first file on, not before."""
    folders = {parent.as_posix() for source in tree.sources for parent in Path(source.path).parents}
    folders |= {path.removesuffix(".h") for path in tree.paths if path.count("/") == 2}  # a room may be one header
    for room in tree.rooms:
        for name in [room, *(f"{room}/{part}" for part in tree.parts.get(room, ()) if part != ".")]:
            if f"include/hasten/{name}" not in folders and f"src/{name}" not in folders:
                yield Finding("CMakeLists.txt", 1, f"'{name}' has no file in include/hasten/ or src/")


def no_cycles_of_units(tree):
    """Inside a room no unit includes another that includes it again, over however many others."""
    graph = {}
    for _, _, mine, other in includes_inside_rooms(tree):
        graph.setdefault(mine, set()).add(other)
    reached = {}

    def reach(unit):
        if unit not in reached:
            reached[unit] = set()
            todo = [unit]
            while todo:
                for other in graph.get(todo.pop(), ()):
                    if other not in reached[unit]:
                        reached[unit].add(other)
                        todo.append(other)
        return reached[unit]

    told = set()
    for unit in sorted(graph):
        cycle = frozenset(other for other in reach(unit) if unit in reach(other))
        if cycle and cycle not in told:
            told.add(cycle)
            if not any(cycle <= set(known) for known in KNOWN_CYCLES):
                yield Finding(unit, 1, f"a cycle of units: {', '.join(sorted(cycle))}. Move what they share into a unit of its own")
    for known in KNOWN_CYCLES:
        if tree.paths and not any(cycle <= set(known) for cycle in told) and any(unit in graph for unit in known):
            yield Finding("scripts/tidy.py", 1, f"KNOWN_CYCLES names a cycle that is gone: {', '.join(known)}")


def sizes(tree):
    for source in tree.sources:
        cap = HEADER_CAP if source.is_header else SOURCE_CAP
        if len(source.lines) > cap and source.path not in FRONT_DOOR:
            yield Finding(source.path, cap + 1, f"{len(source.lines)} lines; the cap is {cap}. Does it hold two concepts?")
    folders = Counter(source.path.rsplit("/", 1)[0] for source in tree.sources if source.path.startswith(("src/", "include/")))
    for folder, files in folders.items():
        if files > FOLDER_CAP:
            yield Finding(folder, 1, f"{files} files; the cap is {FOLDER_CAP}. Which of them make a sub-room?")
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


def environment_is_handed_on(tree):
    """Environment::current() stands only where a program comes in; all else is handed an Environment."""
    for source in tree.sources:
        if source.shipped and source.room not in ("core", "cli") and source.path not in ENTRIES:
            for line, _ in source.find(r"\bEnvironment::current\(\)"):
                yield Finding(source.path, line, "Environment::current() behind the entries of a program; take an Environment")


def no_global_state(tree):
    """No mutable variable of static or thread storage, but for those of GLOBAL_STATE, each with its reason."""
    variable = (r"(?m)^[ \t]*(?:inline[ \t]+)?(?:static|thread_local)[ \t]+(?:static[ \t]+|thread_local[ \t]+|inline[ \t]+)*"
                r"(?!constexpr|const\b|constinit|assert)[\w:<>,&* \t]*?[\w&*>][ \t]+[*&]*(?:const[ \t]+)?(\w+)(?:\[[^\]]*\])?[ \t]*(?:;|=|\{)")
    found = set()
    for source in tree.sources:
        if not source.shipped:
            continue
        for line, match in source.find(variable):
            declared = match.group(0)[:match.start(1) - match.start(0)]
            if re.search(r"\bconst\b", declared.split("*")[-1]) and "static auto*" not in declared and not declared.count("*"):
                continue
            found.add(source.path)
            if source.path not in GLOBAL_STATE:
                yield Finding(source.path, line, f"mutable state of the whole process: '{match.group(1)}'. Pass it in, or give the reason in tidy.py")
    for path in GLOBAL_STATE:
        if path in tree.paths and path not in found:
            yield Finding("scripts/tidy.py", 1, f"GLOBAL_STATE names {path}, which has none")


def destructors_do_not_block(tree):
    """A destructor does not communicate or wait; what must end collectively takes a callable."""
    for source in tree.sources:
        if not source.shipped or source.path in WAITING_DESTRUCTORS:
            continue
        for line, match in source.find(r"~\w+\(\)\s*(?:noexcept(?:\([^)]*\))?\s*|override\s*)*\{"):
            body, depth = source.code[match.end():], 1
            for end, character in enumerate(body):
                depth += {"{": 1, "}": -1}.get(character, 0)
                if depth == 0:
                    break
            call = re.search(r"\b(wait|barrier|all_reduce_?|all_gather\w*|broadcast_?|broadcast_object|gather_object|receive_?)\s*\(", body[:end])
            if call:
                yield Finding(source.path, line, f"a destructor that calls {call.group(1)}(), which blocks")


def comments_name_files_that_are_there(tree):
    """A comment that names a file (reducer.h, src/comm/store/store.cpp) names one that exists, alone or by its whole path."""
    names = {path.name for folder in (*CODE_FOLDERS, "cmake", "docs", "scripts") for path in (tree.root / folder).rglob("*.*")}
    for source in tree.sources:
        if not source.shipped:
            continue
        for number, line in enumerate(source.lines, 1):
            comment = re.search(r"(?<![:\"])//(.*)", line)
            words = re.sub(r'"[^"]*"', "", comment.group(1)) if comment else ""
            for name in re.findall(r"(?<![\w<./-])([a-z][\w/]*\.(?:h|cpp|inc))\b(?!>)", words):
                known = name.split("/")[-1] in names
                if known and "/" in name:
                    known = is_whole_path(tree, name)
                if not known and not name.startswith(("torch/", "c10/", "ATen/", "linux/")) and name not in FOREIGN_FILES:
                    yield Finding(source.path, number, f"'{name}' is not there")


def prose_of(tree):
    """(path, line number, text) of comments of shipped sources, and of documents."""
    for source in tree.sources:
        if source.shipped:
            for number, line in enumerate(source.lines, 1):
                comment = re.search(r"(?<![:\"])//[/<]*(.*)", line)
                if comment:
                    yield source.path, number, comment.group(1)
    for document in [*sorted(tree.root.glob("*.md")), *sorted(tree.root.glob("docs/**/*.md"))]:
        name = document.relative_to(tree.root).as_posix()
        if name not in ("docs/GLOSSARY.md", "docs/STYLE.md"):
            for number, line in enumerate(document.read_text(encoding="utf-8").splitlines(), 1):
                yield name, number, line


def banned_words(tree):
    """{path: [(line number, word)]} of BANNED in the prose; code in backticks, quotations and paths aside."""
    found = {}
    for path, number, line in prose_of(tree):
        for match in BANNED.finditer(re.sub(r"`[^`]*`|\]\([^)]*\)|\"[^\"]*\"|\S+/\S+", " ", line)):
            found.setdefault(path, []).append((number, match.group(0).strip()))
    return found


def baseline(tree, file):
    """{path: count} of a file of baselines, one "path count" a line."""
    lines = (line for line in (tree.read(file) or "").splitlines() if line and not line.startswith("#"))
    return {path: int(count) for path, count in (line.rsplit(" ", 1) for line in lines)}


def beyond_baseline(tree, file, found):
    """(path, what was found there, how many are allowed) for each path with more than its baseline in `file`."""
    allowed = baseline(tree, file)
    for path, places in sorted(found.items()):
        if len(places) > allowed.get(path, 0):
            yield path, places, allowed.get(path, 0)


def prose_is_plain(tree):
    """No words of BANNED beyond scripts/prose_baseline.txt, which may only shrink (tidy.py --prose writes it anew)."""
    for path, words, most in beyond_baseline(tree, "scripts/prose_baseline.txt", banned_words(tree)):
        number, word = words[-1]
        yield Finding(path, number, f"'{word}': {len(words)} words that docs/STYLE.md bans, {most} at most. "
                                    "Name the subject; use a literal verb")


def comments_begin_with_a_verb_or_a_subject(tree):
    """No comment that begins with "Of": it says whose a thing is, and not what it is."""
    for source in tree.sources:
        for number, line in enumerate(source.lines, 1):
            if re.match(r"\s*//[/<]* ?Of ", line):
                yield Finding(source.path, number, "a comment that begins with 'Of'. Name the subject, or start with a verb")


def names_are_the_fields(tree):
    """No names of BANNED_NAMES in shipped code."""
    for source in tree.sources:
        for line, match in source.find(BANNED_NAMES) if source.shipped else ():
            name = match.group(0)
            if name in PEERS_NAMES and PEERS_NAMES[name].search(source.path):
                continue
            yield Finding(source.path, line, f"'{name}' is a name of this project alone. Take the field's word: timeout, message, "
                                             "received, requested, log")


def paragraphs(lines):
    """(line number, text) of each paragraph or item of a list, joined; code, tables and headings aside."""
    start, parts, fenced, listed = 0, [], False, False
    for number, text in [*lines, (0, "")]:
        fenced ^= text.strip().startswith("```")
        item = re.match(r"\s*(?:[-*]|\d+\.) ", text)
        code = fenced or text.startswith(("|", "#", "```")) or (text.startswith("  ") and not item and not (parts and listed))
        stops = code or not text.strip()
        if parts and (stops or item):
            yield start, " ".join(parts)
            parts = []
        if not stops:
            start, listed = (start, listed) if parts else (number, bool(item))
            parts.append(text.strip())


def comment_lines(source):
    """(line number, text) of the comments of a source; a comment behind code stands alone, and so does each other line."""
    for number, line in enumerate(source.lines, 1):
        own, behind = re.match(r"\s*//[/<]* ?(.*)", line), re.search(r"\s//[/<]* (.*)", line)
        yield from [(number, own.group(1))] if own else [(0, ""), (number, behind.group(1) if behind else ""), (0, "")]


def sentences(tree):
    """(path, line number, sentence) of the comments of shipped sources and of the documents, the change log aside."""
    texts = [(source.path, comment_lines(source)) for source in tree.sources if source.shipped]
    for document in [*sorted(tree.root.glob("*.md")), *sorted(tree.root.glob("docs/**/*.md"))]:
        if document.name != "CHANGELOG.md":
            lines = document.read_text(encoding="utf-8").splitlines()
            texts.append((document.relative_to(tree.root).as_posix(), enumerate(lines, 1)))
    for path, lines in texts:
        for number, text in paragraphs(lines):
            for sentence in re.split(r"(?<!e\.g)(?<!i\.e)[.!?][\")]*\s+", text):
                yield path, number, sentence


def long_sentences(tree):
    """{path: [(line number, number of words)]} of sentences above MAX_WORDS."""
    found = {}
    for path, number, sentence in sentences(tree):
        plain = re.sub(r"`[^`]*`|\"[^\"]*\"", "x", re.sub(r"\]\([^)]*\)", "]", sentence))
        clauses = plain.split("; ") if plain.startswith("Throws") else [plain]
        words = max(sum(bool(re.search(r"\w", word)) for word in clause.split()) for clause in clauses)
        if words > MAX_WORDS:
            found.setdefault(path, []).append((number, words))
    return found


def sentences_are_short(tree):
    """No more sentences above MAX_WORDS than in scripts/sentence_baseline.txt, which may only shrink (tidy.py --prose)."""
    for path, found, most in beyond_baseline(tree, "scripts/sentence_baseline.txt", long_sentences(tree)):
        yield Finding(path, found[-1][0], f"a sentence of {found[-1][1]} words: {len(found)} above {MAX_WORDS}, "
                                          f"{most} at most. One fact a sentence")


def decisions_have_headings(tree):
    """Each page of docs/decisions/ has the five headings, in order."""
    wanted = ["Context", "Decision", "Alternatives", "Consequences", "Revisit when"]
    for page in sorted(tree.root.glob("docs/decisions/0*.md")):
        headings = re.findall(r"^## (.*)$", page.read_text(encoding="utf-8"), re.M)
        if [heading for heading in headings if heading in wanted] != wanted:
            yield Finding(page.relative_to(tree.root).as_posix(), 1, f"the headings are {headings}; expected {wanted}, and an appendix")


def fmt_apart_from_torch(tree):
    """fmt's and spdlog's headers cannot be compiled beside libtorch, which carries another fmt."""
    for source in tree.sources:
        for line, match in source.includes():
            if match.group(1).split("/")[0] not in ("spdlog", "fmt") or source.room is None:
                continue
            if source.is_header or source.room == "all rooms" or source.room in tree.torch_rooms:
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
        if not source.shipped or source.room in ("comm", "python"):
            continue
        for line, _ in source.find(r"\bnamespace\s+c10d\b|\bc10d\s*::"):
            yield Finding(source.path, line, "c10d outside comm; use comm::Group")
        for line, match in source.includes():
            if source.room == "rpc" and re.match(r"torch/csrc/distributed/(rpc|autograd)/", match.group(1)):
                continue  # libtorch's distributed autograd, which is no collective
            if source.room == "parallel" and match.group(1).startswith("torch/csrc/distributed/autograd/context/"):
                continue  # gradients of a context, as data parallelism finds them
            if match.group(1).startswith("torch/csrc/distributed"):
                yield Finding(source.path, line, f"<{match.group(1)}> outside comm; use comm::Group")


def every_concept_has_its_test(tree):
    """A header has a test file of its name in its room's folder, or is included by one there, or is a part (options,
    traits) that such a header includes itself."""
    headers = {source.path: source for source in tree.sources if source.path.startswith("include/hasten/")}
    room = {path: header.room for path, header in headers.items()}

    def included_by(source):
        return {f"include/{match.group(1)}" for _, match in source.includes()} & headers.keys()

    # A room's own header, include/hasten/ROOM.h, only includes the others.
    tested = set(UNTESTED) | {path for path, header in headers.items() if path == f"include/hasten/{header.room}.h" and header.room != "accelerator"}
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
    elsewhere += "".join(path.read_text(encoding="utf-8") for path in sorted((tree.root / "python").rglob("*.py")))
    elsewhere += "".join(source.without_comments for source in tree.sources if not source.shipped)
    for name, number in documented.items():
        if name not in used and not re.search(rf"\b{name}\b", elsewhere):
            yield Finding("docs/environment.md", number, f"{name} is read nowhere")


def architecture_has_a_row_a_room(tree):
    """The table of rooms in docs/ARCHITECTURE.md has each room of CMakeLists.txt once."""
    text = tree.read("docs/ARCHITECTURE.md") or ""
    rows = re.findall(r"(?m)^\| ([a-z_]+) \|", text.partition("| room | holds |")[2].partition("\n\n")[0])
    for room in tree.rooms if rows else ():
        if rows.count(room) != 1:
            yield Finding("docs/ARCHITECTURE.md", 1, f"the table of rooms has {rows.count(room)} rows for '{room}', expected one")


def documents_name_files_that_are_there(tree):
    """Links to files of the project, and paths in backticks (src/comm/store/store.cpp; not patterns such as src/ROOM/X.cpp)."""
    folders = "|".join((*CODE_FOLDERS, "cmake", "docs", "scripts"))
    for document in [*sorted(tree.root.glob("*.md")), *sorted(tree.root.glob("docs/**/*.md"))]:
        name = document.relative_to(tree.root).as_posix()
        text = re.sub(r"(?ms)^```.*?^```", lambda block: re.sub(r"[^\n]", " ", block.group(0)), document.read_text(encoding="utf-8"))
        for number, line in enumerate(text.splitlines(), 1):
            targets = [(target, document.parent) for target in re.findall(r"\]\(([^)#]+)[^)]*\)", line) if "://" not in target]
            targets += [(target, tree.root) for target in re.findall(rf"`((?:{folders})/[a-z0-9_./-]*)`", line)]
            for target, base in targets:
                if not (base / target).exists():
                    yield Finding(name, number, f"'{target}' is not there")
            if name.startswith("docs/decisions/") or name == "CHANGELOG.md":
                continue  # as it was then
            for header in re.findall(r"`<?([a-z_0-9]+(?:/[a-z_0-9]+)+\.h)>?`", line):
                if not is_whole_path(tree, header):
                    yield Finding(name, number, f"'{header}' is no whole path of a header, as programs include it")


def is_whole_path(tree, name):
    """Whether a file is there whose path a comment or page gives whole: comm/group/group.h; one of libtorch or Linux is."""
    return name.startswith(("torch/", "c10/", "ATen/", "linux/")) or any(
        (tree.root / folder / name).exists() for folder in ("include/hasten", "include", "src", "src/comm/gloo_decl/gloo", "."))


def numbers_in_the_classic_locale(tree):
    """No number is read or written by a function that follows the program's locale (hasten/core/number.h has the others)."""
    for source in tree.sources:
        if not source.shipped and not source.path.startswith("self_test/"):
            continue
        for line, match in source.find(r"\b(?:std::sto[a-z]+|ato(?:i|l|ll|f)|strto(?:d|f|ld))\s*\("):
            yield Finding(source.path, line, f"{match.group(0)}…) follows the program's locale, or throws without words; hasten/core/number.h")
        for line, _ in source.find(r'(?:printf|scanf)\s*\([^;]*"[^"]*%[-+ 0#]*[\d.*]*l?[aefgAEFG]', source.without_comments):
            yield Finding(source.path, line, "printf writes, and scanf reads, this number as the program's locale does; hasten/core/number.h")
        for line, match in source.find(r"\bstd::o?stringstream\s+(\w+)\s*[;({]"):
            name, rest = match.group(1), source.code[match.end():match.end() + 300]
            if not re.search(rf"\b{name}\.imbue\(|\b{name} << \w+\.rdbuf\(\)|save_to\({name}\)", rest):
                yield Finding(source.path, line, f"'{name}' writes as the program's locale does; imbue std::locale::classic(), or take text()")


def messages_end_their_sentences(tree):
    """A caller's error ends with a period or a question mark; nothing but a sentence follows a guess (hasten/core/sentence.h)."""
    balanced = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
    for source in tree.sources:
        if not source.shipped:
            continue
        for line, _ in source.find(rf'\bdid_you_mean{balanced},\s*["\'][.; ]', source.without_comments):
            yield Finding(source.path, line, "a text goes on behind '?': take guess_end(), which ends the sentence")
        for line, match in source.find(r'(?s)\bthrow (?:Usage|Data)Error\((?:"(?:\\.|[^"\\\n])*"|[^";])*?"((?:\\.|[^"\\\n])*)"\);',
                                       source.without_comments):
            of_a_wire = re.search(r'"(?:frame|message|handshake)",', match.group(0))  # no caller reads these alone
            if match.group(1) and not of_a_wire and not re.search(r"[.?!:]$", match.group(1)):
                yield Finding(source.path, line, f"the message ends in '{match.group(1)[-30:]}': end the sentence, with what to do")

MESSAGE_CALL = re.compile(r"(?:\b(?:UsageError|DataError|CommError|InternalError|text)"
                          r"|\b(?:log|logger|log_)\w*(?:\(\))?(?:\.|->)(?:warning|error|info|critical|warning_once)"
                          r"|\b(?:warn|complain|refuse|fail|problems_?\.push_back|errors_?\.push_back))\s*\(")
LITERAL = re.compile(r'"((?:\\.|[^"\\\n])*)"|\'(?:\\.|[^\'\\\n])*\'')
# Nouns that messages count.
COUNTED = re.compile(r" (actions|arguments|axes|batches|blocks|buffers|bytes|cells|channels|characters|classes|columns|cycles"
                     r"|devices|dimensions|documents|elements|entries|epochs|events|fields|files|groups|heads|images|indices|inputs|items"
                     r"|keys|labels|launchers|layers|levels|lines|lists|losses|machines|microbatches|models|modules|nodes|numbers|objects"
                     r"|operators|parameters|parts|pixels|places|points|positions|predictions|processes|ranks|rates|references|replicas"
                     r"|requests|rounds|rows|samples|schedules|sequences|settings|sizes|slots|stages|states|steps|strides|targets|tensors"
                     r"|texts|things|threads|tokens|values|weights|words|workers)\b(?![\'/])")


def parts_of_calls(source):
    """(line number, the call's name, its arguments as texts) of each call that makes a message."""
    text = source.without_comments
    for call in MESSAGE_CALL.finditer(text):
        at, depth, start, parts = call.end(), 1, call.end(), []
        while at < len(text) and depth:
            literal = LITERAL.match(text, at)
            if literal:
                at = literal.end()
                continue
            depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(text[at], 0)
            if depth == 0 or (depth == 1 and text[at] == ","):
                parts.append(text[start:at].strip())
                start = at + 1
            at += 1
        yield text.count("\n", 0, call.start()) + 1, call.group(0), parts


def as_a_sentence(parts):
    """The literals of a message, joined, with … for what stands between."""
    joined = ""
    for part in parts:
        if part.startswith('"'):
            pieces = re.split(r'(?s)"\s*"', part[1:-1] if part.endswith('"') else part[1:] + '"')
            joined += re.sub(r'(?<!\\)".*(?<!\\)"|(?<!\\)".*$', "…", "".join(pieces), flags=re.DOTALL)
        else:
            joined += {"'.'": ".", "' '": " ", "','": ",", "';'": ";", "':'": ":"}.get(part, "…")
    return joined


def messages_read_well(tree):
    """In errors and lines of logs: one space between words, none before a period; one period; a sentence begins with a capital letter, a
    quotation, a number or a name of code; the room stands in front once."""
    forms = [(r"\S  \S", "two spaces"), (r" [,;](?=[ …])| \.(?=\s|$)", "a space before a mark"),
             (r"(?<!\.)\.\.(?!\.)(?=[ …]|$)|[;,?]\.|;,|,;|\?[;,]", "two marks behind each other"),
             (r"[a-z)'…]\. (?!chunks )[a-z]+(?=[ ,:])(?!\w*[_.(])", "a sentence that begins with a small letter"),
             (r"^…*\[[a-z]+\] ", "the room in brackets, which Origin writes"), (r"\b1 (?:are|have|were)\b|\b1" + COUNTED.pattern, "a plural behind 1")]
    for source in tree.sources:
        if not source.shipped:
            continue
        for line, call, parts in parts_of_calls(source):
            sentence = as_a_sentence(parts)
            if call.startswith("text") or "\\n" in sentence:
                continue
            for pattern, what in forms:
                found = re.search(pattern, re.sub(r"'[^' ]*'", "'x'", sentence))
                if found:
                    yield Finding(source.path, line, f"{what}: '{sentence[max(0, found.start() - 20):found.end() + 20]}'")


def unnumbered_nouns(tree):
    """{path: [(line number, noun)]} of numbers with a plural behind them that stays one behind 1."""
    found = {}
    for source in tree.sources:
        if not source.shipped:
            continue
        for line, _, parts in parts_of_calls(source):
            for number, words in zip(parts, parts[1:]):
                noun = COUNTED.match(words[1:]) if words.startswith('" ') else None
                if noun and not number.endswith(('"', "'")) and "?" not in number:
                    found.setdefault(source.path, set()).add((line, noun.group(1)))
    return {path: sorted(places) for path, places in found.items()}


def nouns_follow_their_number(tree):
    """Messages write "1 rank" and "2 ranks" by count_text (hasten/core/count_text.h); no more others than in
    scripts/plural_baseline.txt, which may only shrink (tidy.py --prose)."""
    for path, places, most in beyond_baseline(tree, "scripts/plural_baseline.txt", unnumbered_nouns(tree)):
        line, noun = places[-1]
        yield Finding(path, line, f"'{noun}' behind any number, 1 as well: {len(places)} such places, {most} at most. "
                                  "Take count_text() of hasten/core/count_text.h")


def programs_end_with_the_commands_codes(tree):
    """CLI11_PARSE ends a program with CLI11's own exit codes; example::run and bench::parse with 2, as the command."""
    for source in tree.sources:
        for line, _ in source.find(r"\bCLI11_PARSE\b"):
            yield Finding(source.path, line, "CLI11_PARSE ends with CLI11's exit codes; example::run and bench::parse end with 2")


RULES = [numbers_in_the_classic_locale, messages_end_their_sentences, messages_read_well, nouns_follow_their_number, programs_end_with_the_commands_codes, arrows, parts_in_order, rooms_and_parts_have_files, no_cycles_of_units, sizes, front_door_forwards, environment_in_core, environment_is_handed_on,
         no_global_state, destructors_do_not_block, comments_name_files_that_are_there, prose_is_plain, comments_begin_with_a_verb_or_a_subject, names_are_the_fields, sentences_are_short, decisions_have_headings, fmt_apart_from_torch, no_using_namespace_in_headers,
         no_conditions_in_public_headers, c10d_in_comm, every_concept_has_its_test, sources_mirror_headers,
         files_open_with_a_comment, flags_are_frozen, environment_is_documented, architecture_has_a_row_a_room, documents_name_files_that_are_there]


def main():
    parser = argparse.ArgumentParser(description="Checks the rules of docs/STYLE.md that no compiler checks.")
    parser.add_argument("--root", default=Path(__file__).resolve().parent.parent)
    parser.add_argument("--prose", action="store_true", help="write the baselines of scripts/ anew; they may only shrink")
    options = parser.parse_args()
    tree = Tree(options.root)
    if options.prose:
        for file, what, found in [("prose", "Words that docs/STYLE.md bans", banned_words(tree)),
                                  ("sentence", f"Sentences of more than {MAX_WORDS} words", long_sentences(tree)),
                                  ("plural", "Plurals behind any number in messages", unnumbered_nouns(tree))]:
            lines = [f"# {what}, by file; may only shrink. Written by scripts/tidy.py --prose."]
            lines += [f"{path} {len(places)}" for path, places in sorted(found.items())]
            (tree.root / f"scripts/{file}_baseline.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return 0
    findings = [(rule, finding) for rule in RULES for finding in rule(tree)]
    for rule, finding in findings:
        print(f"{finding} [{rule.__name__}]")
    print(f"tidy: {len(RULES)} rules, {len(tree.sources)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
