// The reader; json_writer.cpp has the other direction. See json.h.
#include "hasten/core/json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hasten/core/count_text.h"
#include "hasten/core/digit.h"
#include "hasten/core/error.h"
#include "hasten/core/number.h"
#include "hasten/core/text.h"
#include "hasten/core/utf8.h"

namespace hasten::core {
namespace {

bool has_repeated_key(const Value::Map& map) {
  std::vector<std::string_view> keys;
  keys.reserve(map.size());
  for (const auto& pair : map) keys.push_back(pair.first);
  std::sort(keys.begin(), keys.end());
  return std::adjacent_find(keys.begin(), keys.end()) != keys.end();
}

// The last value of a key that occurs twice in one map counts, at the place of the first.
void drop_repeated_keys(Value::Map& map) {
  if (map.size() < 2 || !has_repeated_key(map)) return;
  std::unordered_map<std::string, size_t> index;
  Value::Map kept;
  for (auto& [key, value] : map) {
    const auto [found, is_new] = index.emplace(key, kept.size());
    if (is_new) {
      kept.emplace_back(std::move(key), std::move(value));
    } else {
      kept[found->second].second = std::move(value);
    }
  }
  map = std::move(kept);
}

// Reads with a stack of open maps and lists of its own.
class JsonReader {
 public:
  JsonReader(std::string_view text, const JsonForm& form, JsonError& error) : text_(text), form_(form), error_(error) {
    if (form.comments && text.starts_with("\xEF\xBB\xBF")) at_ = 3;
  }

  std::optional<Value> whole() {
    Value value;
    if (!read(value) || !skip()) return std::nullopt;
    if (at_ < text_.size()) return fail("text behind the end", "nothing more"), std::nullopt;
    return value;
  }

 private:
  struct Open {
    Value value;
    std::string key = {};
    std::unordered_set<std::string> keys = {};  // of a form whose keys differ
    bool is_list() const { return value.is_list(); }
    char closing() const { return is_list() ? ']' : '}'; }
  };
  enum class Next { kElement, kClosed, kError };

  bool fail(std::string found, std::string expected, JsonError::Kind kind = JsonError::Kind::kSyntax) {
    error_.kind = kind;
    error_.found = std::move(found);
    error_.expected = std::move(expected);
    error_.offset = at_;
    const std::string_view before = text_.substr(0, at_);
    error_.line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    error_.column = at_ - (before.rfind('\n') + 1) + 1;  // npos + 1 is 0
    return false;
  }
  std::string found() const { return at_ < text_.size() ? text("'", text_[at_], "'") : "the end of the text"; }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }

  // Blanks, and comments where they are taken.
  bool skip() {
    while (at_ < text_.size()) {
      const char next = text_[at_];
      if (next == ' ' || next == '\n' || next == '\t' || next == '\r') {
        ++at_;
      } else if (form_.comments && (next == '#' || text_.substr(at_, 2) == "//")) {
        at_ = std::min(text_.find('\n', at_), text_.size());
      } else if (form_.comments && text_.substr(at_, 2) == "/*") {
        const size_t end = text_.find("*/", at_ + 2);
        if (end == std::string_view::npos) return fail("a comment without an end", "*/");
        at_ = end + 2;
      } else {
        break;
      }
    }
    return true;
  }

  bool read(Value& root) {
    for (;;) {
      if (!skip()) return false;
      Value value;
      if (const char first = peek(); first == '{' || first == '[') {
        if (!open(first == '[')) return false;
        const Next next = first_element();
        if (next == Next::kError) return false;
        if (next == Next::kElement) continue;
        value = close();
      } else if (!read_scalar(value)) {
        return false;
      }
      for (;;) {
        if (open_.empty()) return root = std::move(value), true;
        add(std::move(value));
        const Next next = next_element();
        if (next == Next::kError) return false;
        if (next == Next::kElement) break;
        value = close();
      }
    }
  }

  bool open(bool is_list) {
    if (open_.size() >= form_.max_depth) {
      return fail("a value nested too deeply", text("at most ", count_text(form_.max_depth, "level")),
                  JsonError::Kind::kDepth);
    }
    ++at_;
    open_.push_back({is_list ? Value(Value::List()) : Value(Value::Map())});
    return true;
  }

  Value close() {
    ++at_;
    Value value = std::move(open_.back().value);
    open_.pop_back();
    if (value.is_map() && !form_.unique_keys) drop_repeated_keys(value.as_map());
    return value;
  }

  void add(Value value) {
    Open& parent = open_.back();
    if (parent.is_list()) {
      parent.value.as_list().push_back(std::move(value));
    } else {
      parent.value.as_map().emplace_back(std::move(parent.key), std::move(value));
    }
  }

  // Behind an opening bracket.
  Next first_element() {
    if (!skip()) return Next::kError;
    if (peek() == open_.back().closing()) return Next::kClosed;
    return element();
  }

  // Behind an element.
  Next next_element() {
    if (!skip()) return Next::kError;
    const char closing = open_.back().closing();
    if (peek() == closing) return Next::kClosed;
    if (peek() != ',') return fail(found(), text("',' or '", closing, "'")), Next::kError;
    ++at_;
    if (!skip()) return Next::kError;
    if (form_.comments && peek() == closing) return Next::kClosed;
    return element();
  }

  // The key and the colon of a map's element.
  Next element() {
    Open& parent = open_.back();
    if (parent.is_list()) return Next::kElement;
    if (peek() != '"') return fail(found(), "a key in quotes, or '}'"), Next::kError;
    const size_t start = at_;
    parent.key.clear();
    if (!read_string(parent.key)) return Next::kError;
    if (form_.unique_keys && !parent.keys.insert(parent.key).second) {
      at_ = start;
      error_.subject = parent.key;
      fail(text("the key \"", parent.key, "\" a second time"), "each key once", JsonError::Kind::kRepeatedKey);
      return Next::kError;
    }
    if (!skip()) return Next::kError;
    if (peek() != ':') return fail(found(), text("':' behind the key \"", parent.key, "\"")), Next::kError;
    ++at_;
    return Next::kElement;
  }

  bool take_word(std::string_view word, Value& value, Value meaning) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    value = std::move(meaning);
    return true;
  }

  bool read_scalar(Value& value) {
    if (peek() == '"') {
      std::string read;
      if (!read_string(read)) return false;
      value = Value(std::move(read));
      return true;
    }
    const size_t start = at_;
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    bool is_read = take_word("true", value, true) || take_word("false", value, false) || take_word("null", value, {});
    if (!is_read && form_.python_numbers) {
      is_read = take_word("NaN", value, std::numeric_limits<double>::quiet_NaN()) ||
                take_word("Infinity", value, kInfinity) || take_word("-Infinity", value, -kInfinity);
    }
    if (!is_read) {
      if (!scan_number()) return no_value(start);
      if (!is_word_letter(peek())) return convert_number(start, value);
    }
    return !is_word_letter(peek()) || no_value(start);
  }

  static bool is_word_letter(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '+' || c == '-' || c == '.';
  }

  bool no_value(size_t start) {
    at_ = start;
    while (is_word_letter(peek())) ++at_;
    const std::string_view word = text_.substr(start, at_ - start);
    at_ = start;
    return fail(word.empty() ? found() : text("'", word, "'"),
                "a value: text in quotes, a number, true, false, null, {…} or […]");
  }

  // Goes behind a number of JSON's grammar.
  bool scan_number() {
    if (peek() == '-') ++at_;
    const size_t first = at_;
    if (!scan_digits() || (text_[first] == '0' && at_ > first + 1)) return false;
    is_whole_ = true;
    if (peek() == '.') {
      ++at_;
      is_whole_ = false;
      if (!scan_digits()) return false;
    }
    if (peek() == 'e' || peek() == 'E') {
      ++at_;
      is_whole_ = false;
      if (peek() == '+' || peek() == '-') ++at_;
      if (!scan_digits()) return false;
    }
    return true;
  }

  bool scan_digits() {
    const size_t first = at_;
    while (is_digit(peek())) ++at_;
    return at_ > first;
  }

  bool convert_number(size_t start, Value& value) {
    const std::string_view digits = text_.substr(start, at_ - start);
    int64_t integer = 0;
    if (is_whole_ && std::from_chars(digits.data(), digits.data() + digits.size(), integer).ec == std::errc()) {
      value = integer;
      return true;
    }
    const double number = real_number(digits).value_or(0);
    value = number;
    const bool fits = std::isfinite(number) ? !is_whole_ || form_.large_integers : form_.python_numbers;
    if (fits) return true;
    at_ = start;
    error_.subject = digits;
    return fail(text("the number ", digits), "one that fits into 64 bits", JsonError::Kind::kLargeNumber);
  }

  bool read_string(std::string& out) {
    const size_t start = at_++;
    for (;;) {
      const size_t plain = at_;
      while (at_ < text_.size() && is_plain(text_[at_])) ++at_;
      out.append(text_.substr(plain, at_ - plain));
      if (at_ >= text_.size()) break;
      const char next = text_[at_];
      if (next == '"') return ++at_, true;
      if (next == '\\') {
        if (!read_escape(out)) return false;
      } else if (static_cast<unsigned char>(next) < 0x20) {
        if (!form_.comments || next == '\n') break;
        out += text_[at_++];
      } else {
        const size_t length = utf8_length(text_.substr(at_));
        if (length == 0) return fail("a byte that is no UTF-8", "text in UTF-8");
        out.append(text_.substr(at_, length));
        at_ += length;
      }
    }
    const std::string found_here = at_ < text_.size() ? "a control character" : found();
    at_ = at_ < text_.size() ? at_ : start;
    return fail(found_here, "the closing quote of a text");
  }

  static bool is_plain(char c) {
    const auto byte = static_cast<unsigned char>(c);
    return byte >= 0x20 && byte < 0x80 && c != '"' && c != '\\';
  }

  bool read_escape(std::string& out) {
    constexpr std::string_view kFrom = "\"\\/bfnrt", kTo = "\"\\/\b\f\n\r\t";
    const char letter = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (letter == 'u') return read_code(out);
    const size_t index = kFrom.find(letter);
    if (index == std::string_view::npos) {
      return fail(letter == '\0' ? "\\ without a letter" : text("\\", letter),
                  "one of \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\u");
    }
    out += kTo[index];
    at_ += 2;
    return true;
  }

  // \u0041, or two of them for a letter beyond 16 bits.
  bool read_code(std::string& out) {
    unsigned code = 0, low = 0;
    if (!read_hex(code)) return false;
    if (code >= 0xD800 && code < 0xDC00) {
      if (text_.substr(at_, 2) != "\\u" || !read_hex(low) || low < 0xDC00 || low > 0xDFFF) {
        return fail("half a surrogate pair", "both halves, \\ud83d\\ude00 for example");
      }
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xDC00 && code < 0xE000) {
      return fail("half a surrogate pair", "both halves, \\ud83d\\ude00 for example");
    }
    append_utf8(out, code);
    return true;
  }

  bool read_hex(unsigned& code) {
    const std::string_view digits = text_.substr(std::min(at_ + 2, text_.size()), 4);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || read.ptr != digits.data() + 4) {
      return fail("\\u without four hexadecimal digits", "\\u0041, for example");
    }
    at_ += 6;
    return true;
  }

  std::string_view text_;
  const JsonForm& form_;
  JsonError& error_;
  size_t at_ = 0;
  bool is_whole_ = false;  // the number that was scanned last
  std::vector<Open> open_;
};

// {"$double": "nan"} and the like, which to_json writes for numbers that JSON lacks.
std::optional<double> special_double(const Value& value) {
  if (!value.is_map() || value.size() != 1 || value.as_map()[0].first != "$double") return std::nullopt;
  if (const Value& name = value.as_map()[0].second; name.is_string()) {
    if (name == "nan") return std::numeric_limits<double>::quiet_NaN();
    if (name == "inf") return std::numeric_limits<double>::infinity();
    if (name == "-inf") return -std::numeric_limits<double>::infinity();
  }
  return std::nullopt;
}

void restore_special_doubles(Value& value) {
  if (const auto number = special_double(value)) {
    value = *number;
  } else if (value.is_list()) {
    for (Value& element : value.as_list()) restore_special_doubles(element);
  } else if (value.is_map()) {
    for (auto& [key, element] : value.as_map()) restore_special_doubles(element);
  }
}

}  // namespace

std::string JsonError::text() const {
  return hasten::text("line ", line, ", column ", column, ": ", found, "; expected ", expected);
}

std::optional<Value> read_json(std::string_view text, const JsonForm& form, JsonError* error) {
  JsonError mistake;
  auto value = JsonReader(text, form, mistake).whole();
  if (!value && error != nullptr) *error = std::move(mistake);
  if (value && form.named_doubles && text.find("\"$double\"") != std::string_view::npos)
    restore_special_doubles(*value);
  return value;
}

std::string Value::to_json(int indent) const {
  return write_json(*this, {.indent = indent});
}

Value Value::parse_json(std::string_view text, const std::string& name) {
  JsonError error;
  auto value = read_json(text, {.named_doubles = true}, &error);
  if (!value) throw DataError({"core"}, name, name, " is no JSON: ", error.text(), ". Correct the text.");
  return *std::move(value);
}

}  // namespace hasten::core
