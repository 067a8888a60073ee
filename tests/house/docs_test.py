#!/usr/bin/env python3
"""scripts/docs.py: how Doxygen reads a header, and which rooms have a page."""
import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))
import docs  # noqa: E402

HEADERS = docs.ROOT / "include/hasten"


class Docs(unittest.TestCase):
    def test_a_header_and_all_it_declares_belong_to_its_room(self):
        text = docs.filtered(HEADERS / "comm/group/group.h")
        self.assertTrue(text.startswith("/** @file hasten/comm/group/group.h\n@ingroup comm\n"), text[:200])
        self.assertLess(text.index("@addtogroup comm"), text.index("class Group"))
        self.assertTrue(text.endswith("/** @} */\n"))

    def test_headers_in_no_folder_belong_to_the_room_of_their_name_or_to_the_accelerator(self):
        self.assertEqual(docs.room_of(HEADERS / "data.h"), "data")
        self.assertEqual(docs.room_of(HEADERS / "hasten.h"), "accelerator")

    def test_placeholders_are_no_html_and_code_stays(self):
        self.assertEqual(docs.plain("<log_dir>/<n>, `vector<int>`"), "\\<log_dir>/\\<n>, `vector<int>`")

    def test_every_room_with_public_headers_has_a_page(self):
        folders = {path.name for path in HEADERS.iterdir() if path.is_dir()}
        self.assertEqual(set(docs.rooms()), folders)


if __name__ == "__main__":
    unittest.main()
