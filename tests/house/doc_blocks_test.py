#!/usr/bin/env python3
"""tests/house/doc_blocks.py: which blocks are declarations, and what stands for left-out code."""
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import doc_blocks  # noqa: E402


class DocBlocks(unittest.TestCase):
    def translated(self, page):
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "page.md"
            path.write_text(page, encoding="utf-8")
            return doc_blocks.translate(path, "docs/page.md")

    def test_statements_stand_in_a_function_with_the_line_of_the_page(self):
        _, code = self.translated("# Page\n\n```cpp\nnet.train();\n```\n")
        self.assertEqual(code, 'void block_4() {\n#line 4 "docs/page.md"\nnet.train();\n}\n')

    def test_declarations_and_programs_stand_for_themselves(self):
        for block in ("struct A {\n};\n", "at::Tensor f(int a) {\n  return g(a);\n}\n", "std::vector<int> f(B<> b) {\n}\n"):
            self.assertEqual(self.translated(f"```cpp\n{block}```\n")[1], f'#line 2 "docs/page.md"\n{block}')
        includes, code = self.translated("```cpp\n#include <a.h>\n\nint main() {\n}\n```\n")
        self.assertEqual(includes, ["#include <a.h>"])
        self.assertIn("int main_2() {", code)

    def test_left_out_code_is_an_empty_statement_or_a_split(self):
        self.assertIn("\n  ;\n  f();\n", self.translated("```cpp\nfor (;;) {\n  …\n  f();\n}\n```\n")[1])
        self.assertIn("{ {} }", self.translated("```cpp\nfor (;;) { … }\n```\n")[1])
        _, code = self.translated("```cpp\nvoid f(int a) {\n}\n…\nf(1);\n```\n")
        self.assertIn("void block_5() {", code)
        self.assertNotIn("void block_2() {", code)

    def test_other_languages_are_left_alone(self):
        self.assertEqual(self.translated("```\nls\n```\n```cmake\nproject(a)\n```\n"), ([], ""))


if __name__ == "__main__":
    unittest.main()
