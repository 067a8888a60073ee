#!/usr/bin/env python3
"""Every rule of scripts/tidy.py can fail: a small clean tree, and one violation at a time put into it."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import tidy  # noqa: E402

CLEAN = {
    "CMakeLists.txt": "hasten_room(core PRIVATE_LIBRARIES spdlog::spdlog)\nhasten_room(comm TORCH ROOMS core)\n"
                      "hasten_room(state TORCH ROOMS core comm)\nhasten_library()\n",
    "include/hasten/core/env.h": "// Variables.\n#pragma once\n",
    "include/hasten/comm/group.h": '// Groups.\n#pragma once\n#include "hasten/core/env.h"\n',
    "include/hasten/state/process.h": '// This process.\n#pragma once\n#include "hasten/comm/group.h"\n',
    "include/hasten/hasten.h": '// All.\n#pragma once\n#include "hasten/state/process.h"\n',
    "src/core/env.cpp": '// Variables.\n#include "hasten/core/env.h"\n#include <spdlog/spdlog.h>\n'
                        'auto path = getenv("HASTEN_LOG_LEVEL");\n',
    "src/comm/group_impl.h": "// Inside of groups.\n",
    "src/comm/group.cpp": '// Groups.\n#include "hasten/comm/group.h"\n#include "comm/group_impl.h"\nusing c10d::Store;\n',
    "src/comm/gloo.cpp": '// A backend, see group.h.\n#include "comm/group_impl.h"\n',
    "src/state/process.cpp": '// This process.\n#include "hasten/state/process.h"\nauto rank = environment.integer("RANK");\n',
    "cli/main.cpp": '// The command.\n#include "hasten/core/env.h"\n',
    "tests/core/env_test.cpp": "",
    "tests/comm/group_ranks_test.cpp": "",
    "tests/state/process_test.cpp": "",
    "tests/cli/flags.txt": "launch -n\n",
    "docs/environment.md": "| variable |\n| --- |\n| `HASTEN_LOG_LEVEL` |\n| `RANK` |\n",
}


def findings(changes):
    """What tidy finds in the clean tree with these files changed (None: removed), as 'path:line: text [rule]'."""
    with tempfile.TemporaryDirectory() as folder:
        for path, text in {**CLEAN, **changes}.items():
            if text is not None:
                file = Path(folder, path)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text, encoding="utf-8")
        tree = tidy.Tree(folder)
        return [f"{finding} [{rule.__name__}]" for rule in tidy.RULES for finding in rule(tree)]


class Tidy(unittest.TestCase):
    def assert_only(self, changes, *expected):
        found = findings(changes)
        self.assertEqual(len(found), len(expected), found)
        for part, line in zip(expected, found):
            self.assertIn(part, line)

    def test_a_clean_tree_has_no_findings(self):
        self.assert_only({})

    def test_a_room_that_includes_one_below_it_is_reported(self):
        self.assert_only({"src/comm/gloo.cpp": '// A backend.\n#include "comm/group_impl.h"\n#include "hasten/state/process.h"\n'},
                         "src/comm/gloo.cpp:3: room 'comm' may not include 'state'")

    def test_a_room_that_includes_the_front_door_is_reported(self):
        self.assert_only({"include/hasten/state/process.h": '// This process.\n#include "hasten/hasten.h"\n'},
                         "process.h:2: room 'state' may not include 'hasten'")

    def test_the_command_may_not_include_rooms_with_libtorch(self):
        self.assert_only({"cli/main.cpp": '// The command.\n#include "hasten/comm/group.h"\n'},
                         "cli/main.cpp:2: room 'cli' may not include 'comm'")

    def test_a_private_header_of_another_room_is_reported(self):
        self.assert_only({"src/state/process.cpp": '// This process.\n#include "hasten/state/process.h"\n#include "comm/group_impl.h"\n'
                                                   'auto rank = environment.integer("RANK");\n'},
                         "'comm/group_impl.h' is private to room 'comm'")

    def test_an_arrow_to_a_room_further_down_is_reported(self):
        self.assert_only({"CMakeLists.txt": CLEAN["CMakeLists.txt"].replace("(comm TORCH ROOMS core)",
                                                                            "(comm TORCH ROOMS core state)")},
                         "room 'comm' names 'state', which is no room above it")

    def test_a_sub_room_that_includes_a_later_one_is_reported(self):
        parts = CLEAN["CMakeLists.txt"].replace("ROOMS core)", "ROOMS core PARTS types group)", 1)
        files = {"CMakeLists.txt": parts, "src/comm/group/group.h": '// Groups.\n#include "comm/types/work.h"\n',
                 "src/comm/types/work.h": "// Work.\n"}
        self.assert_only(files)
        files["src/comm/types/work.h"] = '// Work.\n#include "comm/group/other.h"\n'
        self.assert_only(files, "work.h:2: sub-room 'types' may not include 'group'")

    def test_a_room_or_a_sub_room_without_a_file_is_reported(self):
        parts = CLEAN["CMakeLists.txt"].replace("ROOMS core)", "ROOMS core PARTS types group)", 1)
        self.assert_only({"CMakeLists.txt": parts, "src/comm/types/work.h": "// Work.\n"}, "'comm/group' has no file")
        self.assert_only({"CMakeLists.txt": CLEAN["CMakeLists.txt"] + "hasten_room(watch TORCH)\n"}, "'watch' has no file")

    def test_a_page_that_leaves_a_folder_out_of_a_headers_path_is_reported(self):
        page = {"include/hasten/comm/types/work.h": "// Work.\n", "tests/comm/work_test.cpp": ""}
        self.assert_only({**page, "docs/comm.md": "See `comm/types/work.h`, `hasten/comm/types/work.h` and `<torch/types.h>`.\n"})
        self.assert_only({**page, "docs/comm.md": "See `comm/work.h`.\n"}, "docs/comm.md:1: 'comm/work.h' is no whole path")

    def test_a_cycle_of_units_is_reported_once_and_a_hidden_implementation_is_none(self):
        self.assert_only({"src/comm/group_impl.h": '// Inside of groups.\n#include "hasten/comm/group.h"\n'})
        self.assert_only({"src/comm/one.h": '// One.\n#include "comm/two.h"\n', "src/comm/two.h": '// Two.\n#include "comm/three.h"\n',
                          "src/comm/three.h": '// Three.\n#include "comm/one.h"\n'}, "a cycle of units: comm/one, comm/three, comm/two")

    def test_the_process_environment_behind_the_entries_is_reported(self):
        text = CLEAN["src/comm/gloo.cpp"] + "auto name = Environment::current();\n"
        self.assert_only({"src/comm/gloo.cpp": text}, "gloo.cpp:3: Environment::current() behind the entries")

    def test_mutable_state_of_the_process_is_reported_and_constants_are_none(self):
        text = CLEAN["src/comm/gloo.cpp"]
        self.assert_only({"src/comm/gloo.cpp": text + "static constexpr int kOne = 1;\nstatic const int two = 2;\nstatic int three() {\n"})
        self.assert_only({"src/comm/gloo.cpp": text + "static int count = 0;\n"}, "gloo.cpp:3: mutable state of the whole process: 'count'")
        self.assert_only({"src/comm/gloo.cpp": text + "thread_local std::string buffer;\n"}, "'buffer'")

    def test_a_destructor_that_waits_is_reported(self):
        text = CLEAN["src/comm/gloo.cpp"]
        self.assert_only({"src/comm/gloo.cpp": text + "Group::~Group() {\n  if (open) { close(); }\n}\nvoid wait() {}\n"})
        self.assert_only({"src/comm/gloo.cpp": text + "Group::~Group() {\n  if (open) { close(); }\n  work.wait();\n}\n"},
                         "gloo.cpp:3: a destructor that calls wait()")

    def test_a_comment_that_names_a_file_which_is_gone_is_reported(self):
        text = CLEAN["src/comm/gloo.cpp"]
        self.assert_only({"src/comm/gloo.cpp": text + "// See comm/group.h, and <torch/types.h>.\n"})
        self.assert_only({"src/comm/gloo.cpp": text + "// See mark.h.\n"}, "gloo.cpp:3: 'mark.h' is not there")
        part = {"include/hasten/comm/types/work.h": "// Work.\n", "tests/comm/work_test.cpp": ""}
        self.assert_only({**part, "src/comm/gloo.cpp": text + "// See comm/types/work.h and work.h.\n"})
        self.assert_only({**part, "src/comm/gloo.cpp": text + "// See comm/work.h.\n"}, "gloo.cpp:3: 'comm/work.h' is not there")

    def test_a_header_over_the_cap_is_reported(self):
        self.assert_only({"include/hasten/core/env.h": "// Variables.\n" * 301}, "env.h:301: 301 lines; the cap is 300")

    def test_a_source_over_the_cap_is_reported(self):
        self.assert_only({"src/comm/gloo.cpp": CLEAN["src/comm/gloo.cpp"] + "//\n" * 600}, "602 lines; the cap is 600")

    def test_a_folder_over_the_cap_is_reported(self):
        text = "// A part of groups.\n"
        self.assert_only({f"src/comm/types/part_{i}.h": text for i in range(40)})
        self.assert_only({f"src/comm/types/part_{i}.h": text for i in range(41)}, "src/comm/types:1: 41 files; the cap is 40")

    def test_a_front_door_may_be_long_but_decides_nothing(self):
        header = "// The front door.\n" + "int x;\n" * 400 + "if constexpr (kOne) {}\n"
        test = {"tests/accelerator/accelerator_test.cpp": ""}
        self.assert_only({"include/hasten/accelerator.h": header, **test})
        self.assert_only({"include/hasten/accelerator.h": header + "if (one) {}\n", **test}, "accelerator.h:403: 'if' in the front door")
        self.assert_only({"include/hasten/accelerator.h": header + "int a = b ? 1 : 2;\n", **test}, "'?' in the front door")

    def test_a_base_class_of_the_front_door_is_reported(self):
        self.assert_only({"include/hasten/accelerator.h": "// The front door.\nclass Accelerator : public Base {\n",
                          "tests/accelerator/accelerator_test.cpp": ""}, "Accelerator has a base class")

    def test_a_reducer_that_grows_is_reported(self):
        many = "int x;\n" * 280
        self.assert_only({"src/parallel/ddp/reducer.cpp": '// DDP.\n#include "parallel/ddp/bucket.h"\n' + many,
                          "src/parallel/ddp/gradient_hooks.h": "// Hooks.\n" + many,
                          "src/parallel/ddp/bucket.h": "// Bucket.\n" + many}, "hooks aside, has 561 lines of code")

    def test_getenv_outside_core_is_reported_but_not_in_a_comment(self):
        text = CLEAN["src/comm/gloo.cpp"]
        self.assert_only({"src/comm/gloo.cpp": text + "// no getenv here\nauto home = std::getenv(kHome);\n"},
                         "gloo.cpp:4: getenv outside core")

    def test_environ_outside_core_is_reported(self):
        self.assert_only({"cli/main.cpp": "// The command.\nauto all = environ;\n"}, "cli/main.cpp:2: environ outside core")

    def test_spdlog_in_a_room_with_libtorch_is_reported(self):
        self.assert_only({"src/comm/gloo.cpp": CLEAN["src/comm/gloo.cpp"] + "#include <spdlog/spdlog.h>\n"},
                         "gloo.cpp:3: <spdlog/spdlog.h> belongs in a .cpp of a room without libtorch")

    def test_fmt_in_a_header_is_reported(self):
        self.assert_only({"include/hasten/core/env.h": "// Variables.\n#include <fmt/format.h>\n"}, "env.h:2: <fmt/format.h>")

    def test_using_namespace_in_a_header_is_reported(self):
        self.assert_only({"src/comm/group_impl.h": "// Inside.\nusing namespace std;\n"},
                         "group_impl.h:2: using namespace in a header")

    def test_ifdef_in_a_public_header_is_reported(self):
        self.assert_only({"include/hasten/comm/group.h": "// Groups.\n#ifdef USE_NCCL\n#endif\n"}, "group.h:2: #ifdef")

    def test_c10d_outside_comm_is_reported_as_name_and_as_include(self):
        text = CLEAN["src/state/process.cpp"]
        self.assert_only({"src/state/process.cpp": text + "c10d::Store* store;\n"}, "process.cpp:4: c10d outside comm")
        self.assert_only({"src/state/process.cpp": text + "#include <torch/csrc/distributed/c10d/Store.hpp>\n"},
                         "process.cpp:4: <torch/csrc/distributed/c10d/Store.hpp> outside comm")

    def test_a_concept_without_a_test_is_reported(self):
        self.assert_only({"tests/comm/group_ranks_test.cpp": None}, "group.h:1: no tests/comm/group_test.cpp")

    def test_a_header_that_a_test_of_its_room_includes_counts_as_tested(self):
        header = {"include/hasten/comm/work.h": "// Work.\n"}
        self.assert_only(header, "work.h:1: no tests/comm/work_test.cpp")
        self.assert_only({**header, "tests/comm/group_ranks_test.cpp": '#include "hasten/comm/work.h"\n'})
        self.assert_only({**header, "tests/state/process_test.cpp": '#include "hasten/comm/work.h"\n'},
                         "work.h:1: no tests/comm/work_test.cpp")

    def test_a_part_that_a_tested_header_includes_counts_as_tested_but_not_a_part_of_that(self):
        self.assert_only({"include/hasten/comm/group.h": '// Groups.\n#include "hasten/comm/work.h"\n',
                          "include/hasten/comm/work.h": '// Work.\n#include "hasten/comm/deep.h"\n',
                          "include/hasten/comm/deep.h": "// Deep.\n"}, "deep.h:1: no tests/comm/deep_test.cpp")

    def test_a_front_door_without_a_test_is_reported(self):
        self.assert_only({"include/hasten/accelerator.h": "// The front door.\n"}, "no tests/accelerator/accelerator_test.cpp")

    def test_a_source_that_belongs_to_no_header_is_reported(self):
        self.assert_only({"src/comm/stray.cpp": "// Stray.\n#include <vector>\n"}, "src/comm/stray.cpp:1: has no header")

    def test_a_file_without_an_opening_comment_is_reported(self):
        self.assert_only({"cli/main.cpp": "int main() {}\n"}, "cli/main.cpp:1: opens without a comment")

    def test_a_missing_list_of_flags_is_reported(self):
        self.assert_only({"tests/cli/flags.txt": None}, "tests/cli/flags.txt:1: missing")

    def test_an_undocumented_variable_is_reported(self):
        self.assert_only({"cli/main.cpp": '// The command.\nconst char* name = "HASTEN_NEW_THING";\n'},
                         "cli/main.cpp:2: HASTEN_NEW_THING is not in docs/environment.md")

    def test_an_undocumented_variable_of_one_word_is_reported_where_it_is_read(self):
        self.assert_only({"cli/main.cpp": '// The command.\nauto n = environment.text("COLUMNS");\n'}, "COLUMNS is not in docs")

    def test_a_documented_variable_that_nobody_reads_is_reported(self):
        self.assert_only({"docs/environment.md": CLEAN["docs/environment.md"] + "| `HASTEN_GONE` |\n"},
                         "docs/environment.md:5: HASTEN_GONE is read nowhere")

    def test_a_missing_document_of_variables_is_reported(self):
        self.assert_only({"docs/environment.md": None}, "docs/environment.md:1: missing")

    def test_a_pronoun_as_an_actor_is_reported_beyond_its_baseline(self):
        text = CLEAN["src/comm/gloo.cpp"]
        self.assert_only({"src/comm/gloo.cpp": text + "// Nobody waits.\n"}, "gloo.cpp:3: 'Nobody': 1 words that docs/STYLE.md bans, 0 at most")
        self.assert_only({"docs/x.md": "What is sent arrives.\n"}, "docs/x.md:1: 'What is'")
        self.assert_only({"docs/x.md": "`nobody` and \"nobody\"\n", "docs/y.md": "Who waits?\n", "scripts/prose_baseline.txt": "docs/y.md 1\n"})

    def test_a_name_of_this_project_alone_is_reported(self):
        text = CLEAN["src/comm/gloo.cpp"]
        self.assert_only({"src/comm/gloo.cpp": text + "int patience_ = 0;  // told\n"}, "gloo.cpp:3: 'patience_' is a name of this project alone")
        self.assert_only({"src/comm/gloo.cpp": text + "const char* x = \"patience\";\n"})

    def test_a_sentence_above_25_words_is_reported_beyond_its_baseline(self):
        words = "Copies one " + "and one " * 12
        header = f"// {words[:11]}\n// {words[11:]}.\n#pragma once\n"
        self.assert_only({"include/hasten/core/env.h": header}, "env.h:1: a sentence of 26 words: 1 above 25, 0 at most")
        self.assert_only({"docs/x.md": f"Short.\n\n- {words}more.\n"}, "docs/x.md:3: a sentence of 27 words")
        self.assert_only({"docs/x.md": f"{words}more.\n", "scripts/sentence_baseline.txt": "# Long ones.\ndocs/x.md 1\n"})

    def test_code_quotations_and_clauses_of_a_throws_line_are_no_long_sentences(self):
        many = "one " * 24
        self.assert_only({"docs/x.md": f"Runs `{many}` and \"{many}\".\n\n```\n{many * 2}\n```\n| {many * 2} |\n"})
        self.assert_only({"include/hasten/core/env.h": f"/// Throws: {many}; {many}.\n//   {many} {many}\nint x;  // {many}\nint y;  // {many}\n"})

    def test_a_decision_without_its_headings_is_reported(self):
        page = "# 1. X\n## Context\n## Decision\n## Alternatives\n## Consequences\n## Revisit when\n## Appendix\n"
        self.assertEqual(findings({"docs/decisions/0001-x.md": page}), [])
        self.assert_only({"docs/decisions/0001-x.md": page.replace("## Consequences\n", "")}, "decisions_have_headings")

    def test_a_room_with_no_row_or_two_in_the_architecture_is_reported(self):
        table = "| room | holds |\n| --- | --- |\n| core | a |\n| comm | b |\n| state | c |\n"
        self.assertEqual(findings({"docs/ARCHITECTURE.md": table}), [])
        self.assert_only({"docs/ARCHITECTURE.md": table + "| core | d |\n"}, "2 rows for 'core'")
        self.assert_only({"docs/ARCHITECTURE.md": table.replace("| comm | b |\n", "")}, "0 rows for 'comm'")

    def test_numbers_that_follow_the_programs_locale_are_reported(self):
        for code in ("auto x = std::stod(word);", "auto x = atoi(word);", "auto x = strtod(word, nullptr);",
                     'snprintf(to, 9, "%.2f s", x);', "std::ostringstream out;\nout << 1234;"):
            self.assert_only({"cli/main.cpp": f"// The command.\n{code}\n"}, "[numbers_in_the_classic_locale]")

    def test_streams_of_bytes_and_of_the_classic_locale_are_not(self):
        for code in ("std::ostringstream out;\nout << file.rdbuf();", 'snprintf(to, 9, "%03o", x);',
                     "std::ostringstream out;\nout.imbue(std::locale::classic());\nout << 1234;"):
            self.assert_only({"cli/main.cpp": f"// The command.\n{code}\n"})

    def test_messages_that_do_not_end_their_sentences_are_reported(self):
        for code in ('throw UsageError(kOrigin, "no word");', 'throw DataError({"x"}, path, "no \'", word, "\' here");',
                     'throw UsageError(kOrigin, "no \'", word, "\'", did_you_mean(word, names(1)), "; expected one.");',
                     'throw UsageError(kOrigin, "no \'", word, "\'", did_you_mean(word, {"a", "b"}), ".");'):
            self.assert_only({"cli/main.cpp": f"// The command.\n{code}\n"}, "[messages_end_their_sentences]")

    def test_messages_that_end_their_sentences_are_not(self):
        for code in ('throw UsageError(kOrigin, "no word. Give one.");', "throw UsageError(kOrigin, words);",
                     'throw UsageError(kOrigin, "no \'", word, "\'", guess_end(word, names(1)), " Expected one.");'):
            self.assert_only({"cli/main.cpp": f"// The command.\n{code}\n"})

    def test_a_message_that_does_not_read_well_is_reported(self):
        for code, what in (('throw UsageError(kOrigin, "no  rows.");', "two spaces"),
                           ('throw UsageError(kOrigin, "no ", "rows", " , but columns.");', "a space before a mark"),
                           ('throw UsageError(kOrigin, "no rows of ", name, ";, add some.");', "two marks"),
                           ('log.warning(text("x"), "no rows. add some.");', "a sentence that begins with a small letter"),
                           ('throw DataError(kOrigin, path, "[data] no rows.");', "the room in brackets"),
                           ('log.warning("there are 1 processes.");', "a plural behind 1"),
                           ('throw UsageError(kOrigin, "1 are given.");', "a plural behind 1")):
            self.assert_only({"cli/main.cpp": f"// The command.\n{code}\n"}, f"cli/main.cpp:2: {what}")

    def test_a_message_that_reads_well_is_not(self):
        for code in ('throw UsageError(kOrigin, "no \'", name, "\' in ", path, ", ", "though it is there. Add some.");',
                     'throw UsageError(kOrigin, "wrong:\\n  ", join(all), ".");',
                     'throw UsageError(kOrigin, "see it. libtorch_name.x is one; \'..\' is none.");',
                     'log.info(text("11 processes", x));'):
            self.assert_only({"cli/main.cpp": f"// The command.\n{code}\n"})

    def test_a_plural_behind_any_number_is_reported_unless_the_baseline_has_it(self):
        code = "// The command.\nlog.info(text(\"of \", f(1, 2), \" ranks\"));\n"
        self.assert_only({"cli/main.cpp": code}, "cli/main.cpp:2: 'ranks' behind any number, 1 as well: 1 such places, 0 at most")
        self.assert_only({"cli/main.cpp": code, "scripts/plural_baseline.txt": "cli/main.cpp 1\n"})
        self.assert_only({"cli/main.cpp": "// The command.\nlog.info(text(count_text(n, \"rank\"), x, \" ranks's\", \" of \"));\n"})

    def test_a_program_with_cli11s_own_exit_codes_is_reported(self):
        self.assert_only({"bench/bench_x.cpp": "// A benchmark.\nint main() { CLI11_PARSE(app, argc, argv); }\n"},
                         "bench/bench_x.cpp:2: CLI11_PARSE ends with CLI11's exit codes")

    def test_a_link_that_leads_nowhere_is_reported(self):
        self.assert_only({"README.md": "See [the file](docs/environment.md#behaviour), [that](docs/gone.md), "
                                       "[and](https://example.org/x)."}, "README.md:1: 'docs/gone.md' is not there")

    def test_a_path_in_a_document_that_is_not_there_is_reported_but_a_pattern_is_not(self):
        self.assert_only({"docs/x.md": "`src/comm/gloo.cpp`, `src/ROOM/X.cpp`, `src/comm/gone.cpp`"},
                         "docs/x.md:1: 'src/comm/gone.cpp' is not there")


if __name__ == "__main__":
    unittest.main()
