// Verses of a Sword module (zText): blocks of zlib-packed text, and which verse lies where.
//
// .bzs has a block's offset, packed size and size (uint32 each), .bzv a verse's block and offset (uint32) and size
// (uint16).
#pragma once

#include <hasten/core/error.h>
#include <zlib.h>

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace example {

/// Text without marks, notes and titles, with single blanks.
inline std::string plain_verse(const std::string& marked) {
  std::string text;
  for (size_t i = 0; i < marked.size();) {
    if (marked[i] != '<') {
      text += std::isspace(static_cast<unsigned char>(marked[i])) != 0 ? ' ' : marked[i];
      ++i;
      continue;
    }
    for (const std::string tag : {"note", "title"}) {
      if (marked.compare(i + 1, tag.size(), tag) == 0 && marked.find("</" + tag, i) != std::string::npos)
        i = marked.find("</" + tag, i);
    }
    const size_t end = marked.find('>', i);
    i = end == std::string::npos ? marked.size() : end + 1;
  }
  const auto twice = [](char a, char b) { return a == ' ' && b == ' '; };
  text.erase(std::unique(text.begin(), text.end(), twice), text.end());
  return text;
}

/// All entries of the module's New Testament, in order; chapters' and books' headings are empty texts.
/// Throws: DataError for files that are missing or do not fit.
inline std::vector<std::string> read_sword(const std::string& module) {
  const std::string base = "/usr/share/sword/modules/texts/ztext/" + module + "/nt.";
  const auto bytes_of = [&](const char* suffix) {
    std::ifstream file(base + suffix, std::ios::binary);
    if (!file) {
      throw hasten::DataError(
          hasten::Origin{"sword"}, base + suffix, "cannot read ", base, suffix,
          "; install Debian's packages sword-text-kjv and sword-text-web, or name a folder with --data.");
    }
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const auto blocks = bytes_of("bzs"), verses = bytes_of("bzv"), packed = bytes_of("bzz");
  const auto number = [](const std::string& from, size_t at) {
    uint32_t value = 0;
    std::memcpy(&value, from.data() + at, 4);
    return value;
  };
  std::map<uint32_t, std::string> unpacked;
  std::vector<std::string> texts;
  for (size_t at = 0; at + 10 <= verses.size(); at += 10) {
    const uint32_t block = number(verses, at), offset = number(verses, at + 4);
    uint16_t size = 0;
    std::memcpy(&size, verses.data() + at + 8, 2);
    if (size == 0) {
      texts.emplace_back();
      continue;
    }
    auto& text = unpacked[block];
    const size_t entry = size_t{block} * 12;
    if (text.empty() && entry + 12 <= blocks.size()) {
      text.resize(number(blocks, entry + 8));
      uLongf length = text.size();
      const size_t begin = number(blocks, entry), count = number(blocks, entry + 4);
      if (begin + count > packed.size() ||
          uncompress(reinterpret_cast<Bytef*>(text.data()), &length,
                     reinterpret_cast<const Bytef*>(packed.data()) + begin, count) != Z_OK) {
        throw hasten::DataError(hasten::Origin{"sword"}, base + "bzz", "block ", block, " of ", base,
                                "bzz is damaged; install the package again.");
      }
      text.resize(length);
    }
    texts.push_back(size_t{offset} + size <= text.size() ? plain_verse(text.substr(offset, size)) : std::string());
  }
  return texts;
}

inline std::set<std::string> words_of(const std::string& text) {
  std::set<std::string> words;
  std::string word;
  for (const char c : text + " ") {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0)
      word += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    else if (!word.empty())
      words.insert(std::exchange(word, {}));
  }
  return words;
}

/// Verses that both translations have: the nearest entry with the largest part of words in common (at least a quarter),
/// since numbering differs by up to three near a book's end.
inline std::vector<std::pair<std::string, std::string>> aligned_verses(const std::vector<std::string>& one,
                                                                       const std::vector<std::string>& other) {
  std::vector<std::set<std::string>> words;
  for (const auto& text : other) words.push_back(words_of(text));
  std::vector<std::pair<std::string, std::string>> pairs;
  for (size_t i = 0; i < one.size(); ++i) {
    const auto own = words_of(one[i]);
    if (own.size() < 4) continue;
    double best = 0.25;
    size_t at = other.size();
    for (size_t j = i < 3 ? 0 : i - 3; j <= std::min(i + 3, other.size() - 1); ++j) {
      const auto common = static_cast<double>(
          std::count_if(own.begin(), own.end(), [&](const auto& word) { return words[j].contains(word); }));
      const double part = common / (static_cast<double>(own.size() + words[j].size()) - common);
      if (part > best) {
        best = part;
        at = j;
      }
    }
    if (at < other.size()) pairs.emplace_back(one[i], other[at]);
  }
  return pairs;
}

}  // namespace example
