// See relaxed_json.h.
#include "hasten/settings/relaxed_json.h"

#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>

#include "hasten/core/error.h"
#include "hasten/core/text.h"

namespace hasten::plan {
namespace {

class JsonReader {
 public:
  JsonReader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with("\xEF\xBB\xBF")) at_ = 3;
  }

  core::Value all() {
    auto value = read();
    skip();
    if (at_ < text_.size()) fail("text behind the end", "nothing more");
    return value;
  }

 private:
  [[noreturn]] void fail(const std::string& found, const std::string& wanted) const {
    size_t line = 1, column = 1;
    for (size_t i = 0; i < at_ && i < text_.size(); ++i) {
      column = text_[i] == '\n' ? 1 : column + 1;
      line += text_[i] == '\n' ? 1 : 0;
    }
    throw DataError(Origin{"deepspeed"}, name_, name_, ":", line, ":", column, ": ", found, "; expected ", wanted, ".");
  }
  std::string found() const { return at_ < text_.size() ? text("'", text_[at_], "'") : text("the end of the text"); }

  // Blanks and comments.
  void skip() {
    while (at_ < text_.size()) {
      const auto rest = text_.substr(at_);
      if (std::isspace(static_cast<unsigned char>(rest[0]))) {
        ++at_;
      } else if (rest[0] == '#' || rest.starts_with("//")) {
        const auto end = text_.find('\n', at_);
        at_ = end == std::string_view::npos ? text_.size() : end;
      } else if (rest.starts_with("/*")) {
        const auto end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) fail("a comment without an end", "*/");
        at_ = end + 2;
      } else {
        return;
      }
    }
  }

  bool take(char wanted) {
    skip();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  core::Value read() {
    if (++depth_ > 200) fail("maps within maps", "at most 200 levels");
    skip();
    if (at_ >= text_.size()) fail(found(), "a value");
    const char first = text_[at_];
    core::Value value = first == '{' ? map() : first == '[' ? list() : first == '"' ? core::Value(string()) : word();
    --depth_;
    return value;
  }

  core::Value map() {
    ++at_;
    core::Value value = core::Value::map();
    while (!take('}')) {
      skip();
      if (at_ >= text_.size() || text_[at_] != '"') fail(found(), "a key in quotes, or '}'");
      const size_t start = at_;
      const std::string key = string();
      if (value.contains(key)) {
        at_ = start;
        fail(text("the key \"", key, "\" a second time"), "each key once");
      }
      if (!take(':')) fail(found(), text("':' behind the key \"", key, "\""));
      value[key] = read();
      if (take(',')) continue;
      if (take('}')) break;
      fail(found(), "',' or '}'");
    }
    return value;
  }

  core::Value list() {
    ++at_;
    core::Value value = core::Value::list();
    while (!take(']')) {
      value.push_back(read());
      if (take(',')) continue;
      if (take(']')) break;
      fail(found(), "',' or ']'");
    }
    return value;
  }

  core::Value word() {
    const size_t start = at_;
    while (at_ < text_.size() && (std::isalnum(static_cast<unsigned char>(text_[at_])) || text_[at_] == '+' ||
                                  text_[at_] == '-' || text_[at_] == '.'))
      ++at_;
    const std::string_view word = text_.substr(start, at_ - start);
    if (word == "true") return true;
    if (word == "false") return false;
    if (word == "null") return nullptr;
    const char* end = word.data() + word.size();
    int64_t whole = 0;
    if (const auto got = std::from_chars(word.data(), end, whole);
        got.ec == std::errc() && got.ptr == end && !word.empty())
      return whole;
    double real = 0;
    if (const auto got = std::from_chars(word.data(), end, real);
        got.ec == std::errc() && got.ptr == end && std::isfinite(real) && !word.empty())
      return real;
    at_ = start;
    fail(word.empty() ? found() : text("'", word, "'"),
         "a value: text in quotes, a number, true, false, null, {…} or […]");
  }

  unsigned hex() {
    unsigned code = 0;
    const auto digits = text_.substr(at_, 4);
    const auto got = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() < 4 || got.ptr != digits.data() + 4)
      fail("\\u without four hexadecimal digits", "\\u0041, for example");
    at_ += 4;
    return code;
  }

  static void append(std::string& text, unsigned code) {
    const auto byte = [&](unsigned value) { text += static_cast<char>(value); };
    if (code < 0x80) {
      byte(code);
    } else if (code < 0x800) {
      byte(0xC0 | code >> 6), byte(0x80 | (code & 0x3F));
    } else if (code < 0x10000) {
      byte(0xE0 | code >> 12), byte(0x80 | (code >> 6 & 0x3F)), byte(0x80 | (code & 0x3F));
    } else {
      byte(0xF0 | code >> 18), byte(0x80 | (code >> 12 & 0x3F)), byte(0x80 | (code >> 6 & 0x3F)),
          byte(0x80 | (code & 0x3F));
    }
  }

  void escape(std::string& value) {
    if (at_ >= text_.size()) fail(found(), "a letter behind \\");
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const char letter = text_[at_++];
    if (letter == 'u') {
      unsigned code = hex();
      if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_).starts_with("\\u")) {
        at_ += 2;
        code = 0x10000 + ((code - 0xD800) << 10) + (hex() - 0xDC00);
      }
      append(value, code);
    } else if (const auto index = kFrom.find(letter); index != std::string_view::npos) {
      value += kTo[index];
    } else {
      fail(text("\\", letter), "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
    }
  }

  std::string string() {
    ++at_;
    std::string value;
    while (at_ < text_.size() && text_[at_] != '"') {
      const char next = text_[at_];
      if (next == '\n') break;
      ++at_;
      if (next == '\\') {
        escape(value);
      } else {
        value += next;
      }
    }
    if (at_ >= text_.size() || text_[at_] != '"') fail(found(), "the closing quote of a text");
    ++at_;
    return value;
  }

  std::string_view text_;
  const std::string& name_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace

core::Value parse_relaxed_json(std::string_view text, const std::string& name) {
  return JsonReader(text, name).all();
}

}  // namespace hasten::plan
