// Git LFS's pointers and HTML by their first bytes; see stand_in.h.
#include "hasten/files/base/stand_in.h"

#include <algorithm>

#include "files/base/origin.h"

namespace hasten::files {
namespace {

bool is_page(std::string_view head) {
  if (head.starts_with("\xef\xbb\xbf")) head.remove_prefix(3);
  const size_t first = head.find_first_not_of(" \t\r\n");
  if (first == std::string_view::npos) return false;
  std::string begin(head.substr(first, 14));
  std::transform(begin.begin(), begin.end(), begin.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c + 32 : c; });
  return begin.starts_with("<!doctype html") || begin.starts_with("<html") || begin.starts_with("<head>");
}

}  // namespace

std::string stand_in_of(std::string_view head) {
  if (head.starts_with("version https://git-lfs")) {
    return "it is a Git LFS pointer, not the file itself. Run 'git lfs pull' in the folder.";
  }
  if (is_page(head)) {
    return "it is a web page (HTML), not the file itself. Get it again from the address of the file; some ask for a "
           "login or a token.";
  }
  return {};
}

bool is_printable(std::string_view head) {
  head = head.substr(0, 256);
  return std::all_of(head.begin(), head.end(),
                     [](char c) { return (c >= ' ' && c <= '~') || (c >= '\t' && c <= '\r'); });
}

void refuse_text(const std::string& path, std::string_view head) {
  fail_data(path, "it is a text, not weights: it begins with '", head.substr(0, std::min<size_t>(head.find('\n'), 40)),
            "'. Give the file or folder of the weights.");
}

void refuse_stand_in(const std::string& path, std::string_view head) {
  if (const std::string words = stand_in_of(head.substr(0, 512)); !words.empty()) fail_data(path, words);
}

}  // namespace hasten::files
