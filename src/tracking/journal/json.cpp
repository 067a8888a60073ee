// See json.h.
#include "tracking/journal/json.h"

#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>

#include "hasten/core/number.h"
#include "hasten/core/text.h"

namespace hasten::tracking {
namespace {

// Length of the UTF-8 sequence at `text`, 0 if it is none (RFC 3629: no overlong forms, no surrogates).
size_t utf8_length(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xC0) == 0x80; };
  const unsigned lead = byte(0);
  if (lead < 0x80) return 1;
  if (lead >= 0xC2 && lead < 0xE0) return follows(1) ? 2 : 0;
  if (lead >= 0xE0 && lead < 0xF0) {
    const bool bad = (lead == 0xE0 && byte(1) < 0xA0) || (lead == 0xED && byte(1) >= 0xA0);
    return !bad && follows(1) && follows(2) ? 3 : 0;
  }
  if (lead >= 0xF0 && lead < 0xF5) {
    const bool bad = (lead == 0xF0 && byte(1) < 0x90) || (lead == 0xF4 && byte(1) >= 0x90);
    return !bad && follows(1) && follows(2) && follows(3) ? 4 : 0;
  }
  return 0;
}

void append_utf8(std::string& out, unsigned code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += {static_cast<char>(0xC0 | code >> 6), static_cast<char>(0x80 | (code & 63))};
  } else if (code < 0x10000) {
    out += {static_cast<char>(0xE0 | code >> 12), static_cast<char>(0x80 | (code >> 6 & 63)),
            static_cast<char>(0x80 | (code & 63))};
  } else {
    out += {static_cast<char>(0xF0 | code >> 18), static_cast<char>(0x80 | (code >> 12 & 63)),
            static_cast<char>(0x80 | (code >> 6 & 63)), static_cast<char>(0x80 | (code & 63))};
  }
}

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  std::optional<core::Value> whole() {
    core::Value value;
    if (!read(value, 0)) return std::nullopt;
    skip_space();
    if (at_ != text_.size()) return fail("something follows the value"), std::nullopt;
    return value;
  }
  std::string reason() const { return text(reason_, " at byte ", at_); }

 private:
  static constexpr int kMostDepth = 64;

  bool fail(const char* reason) { return reason_ = reason, false; }
  void skip_space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) && text_[at_] != '\0') ++at_;
  }
  bool take(char c) {
    skip_space();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  bool take_word(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  bool read(core::Value& value, int depth) {
    if (depth > kMostDepth) return fail("nested too deeply");
    skip_space();
    if (at_ >= text_.size()) return fail("the text ends early");
    switch (text_[at_]) {
      case '{':
        return read_map(value, depth);
      case '[':
        return read_list(value, depth);
      case '"': {
        std::string word;
        if (!read_string(word)) return false;
        value = core::Value(std::move(word));
        return true;
      }
      default:
        return read_word(value);
    }
  }

  bool read_word(core::Value& value) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (take_word("true")) return value = true, true;
    if (take_word("false")) return value = false, true;
    if (take_word("null")) return value = nullptr, true;
    if (take_word("NaN")) return value = std::numeric_limits<double>::quiet_NaN(), true;
    if (take_word("Infinity")) return value = kInfinity, true;
    if (take_word("-Infinity")) return value = -kInfinity, true;
    return read_number(value);
  }

  bool read_number(core::Value& value) {
    const char* const first = text_.data() + at_;
    const char* const end = text_.data() + text_.size();
    const char* last = first;
    bool whole = true;
    for (; last != end && (std::strchr("+-.eE", *last) || (*last >= '0' && *last <= '9')) && *last != '\0'; ++last) {
      if (*last != '-' && (*last < '0' || *last > '9')) whole = false;
    }
    int64_t integer = 0;
    double number = 0;
    const auto as_int = std::from_chars(first, last, integer);
    if (whole && as_int.ec == std::errc() && as_int.ptr == last && first != last) {
      value = integer;
    } else {
      const auto as_double = std::from_chars(first, last, number);
      if (as_double.ec == std::errc::result_out_of_range && as_double.ptr == last) {
        number = core::real_number({first, last}).value_or(0);
      } else if (as_double.ec != std::errc() || as_double.ptr != last) {
        return fail("no value");
      }
      value = number;
    }
    at_ = static_cast<size_t>(last - text_.data());
    return true;
  }

  bool read_escape(std::string& word) {
    const char letter = at_ < text_.size() ? text_[at_++] : '\0';
    switch (letter) {
      case 'n':
        word += '\n';
        return true;
      case 't':
        word += '\t';
        return true;
      case 'r':
        word += '\r';
        return true;
      case 'b':
        word += '\b';
        return true;
      case 'f':
        word += '\f';
        return true;
      case '"':
      case '\\':
      case '/':
        word += letter;
        return true;
      case 'u':
        break;
      default:
        return fail("an unknown escape");
    }
    unsigned code = 0;
    if (!read_hex(code)) return false;
    if (code >= 0xD800 && code < 0xDC00 && text_.substr(at_, 2) == "\\u") {
      at_ += 2;
      unsigned low = 0;
      if (!read_hex(low)) return false;
      if (low < 0xDC00 || low > 0xDFFF) return fail("half a surrogate pair");
      code = 0x10000 + ((code - 0xD800) << 10) + (low - 0xDC00);
    } else if (code >= 0xD800 && code < 0xE000) {
      return fail("half a surrogate pair");
    }
    append_utf8(word, code);
    return true;
  }

  bool read_hex(unsigned& code) {
    const std::string_view digits = text_.substr(at_, 4);
    const auto read = std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    if (digits.size() != 4 || read.ptr != digits.data() + 4) return fail("no four hex digits");
    at_ += 4;
    return true;
  }

  bool read_string(std::string& word) {
    ++at_;
    while (at_ < text_.size()) {
      const size_t plain = at_;
      while (at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\\') ++at_;
      word.append(text_.substr(plain, at_ - plain));
      if (at_ >= text_.size()) break;
      if (text_[at_++] == '"') return true;
      if (!read_escape(word)) return false;
    }
    return fail("a string without an end");
  }

  bool read_list(core::Value& value, int depth) {
    ++at_;
    core::Value::List list;
    if (!take(']')) {
      do {
        list.emplace_back();
        if (!read(list.back(), depth + 1)) return false;
      } while (take(','));
      if (!take(']')) return fail("no ',' or ']'");
    }
    value = core::Value(std::move(list));
    return true;
  }

  bool read_map(core::Value& value, int depth) {
    ++at_;
    core::Value::Map map;
    if (!take('}')) {
      do {
        skip_space();
        if (at_ >= text_.size() || text_[at_] != '"') return fail("no key");
        auto& [key, element] = map.emplace_back();
        if (!read_string(key)) return false;
        if (!take(':')) return fail("no ':'");
        if (!read(element, depth + 1)) return false;
      } while (take(','));
      if (!take('}')) return fail("no ',' or '}'");
    }
    value = core::Value(std::move(map));
    return true;
  }

  const std::string_view text_;
  size_t at_ = 0;
  const char* reason_ = "";
};

}  // namespace

void append_json_string(std::string& out, std::string_view text) {
  out += '"';
  for (size_t i = 0; i < text.size();) {
    const char letter = text[i];
    if (letter == '"' || letter == '\\') {
      out += {'\\', letter};
      ++i;
    } else if (static_cast<unsigned char>(letter) < 0x20) {
      constexpr const char* kHex = "0123456789abcdef";
      if (letter == '\n') {
        out += "\\n";
      } else {
        out += {'\\', 'u', '0', '0', kHex[static_cast<unsigned char>(letter) >> 4], kHex[letter & 15]};
      }
      ++i;
    } else if (static_cast<unsigned char>(letter) < 0x80) {
      out += letter;
      ++i;
    } else if (const size_t length = utf8_length(text.substr(i))) {
      out.append(text.substr(i, length));
      i += length;
    } else {
      out += "\xEF\xBF\xBD";
      ++i;
    }
  }
  out += '"';
}

void append_json_number(std::string& out, double number) {
  if (!std::isfinite(number)) {
    out += std::isnan(number) ? "\"NaN\"" : number > 0 ? "\"Infinity\"" : "\"-Infinity\"";
    return;
  }
  char digits[32];
  const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
  out.append(digits, end);
  // So that it is read back as a double.
  if (std::string_view(digits, static_cast<size_t>(end - digits)).find_first_of(".e") == std::string_view::npos)
    out += ".0";
}

void append_json_number(std::string& out, int64_t number) {
  char digits[24];
  out.append(digits, std::to_chars(digits, digits + sizeof digits, number).ptr);
}

void append_json(std::string& out, const core::Value& value) {
  switch (value.kind()) {
    case core::Value::Kind::kNull:
      out += "null";
      return;
    case core::Value::Kind::kBool:
      out += value.as_bool() ? "true" : "false";
      return;
    case core::Value::Kind::kInt:
      return append_json_number(out, value.as_int());
    case core::Value::Kind::kDouble:
      return append_json_number(out, value.as_double());
    case core::Value::Kind::kString:
      return append_json_string(out, value.as_string());
    case core::Value::Kind::kList: {
      char separator = '[';
      for (const core::Value& element : value.as_list()) {
        out += separator;
        append_json(out, element);
        separator = ',';
      }
      out += value.empty() ? "[]" : "]";
      return;
    }
    case core::Value::Kind::kMap: {
      char separator = '{';
      for (const auto& [key, element] : value.as_map()) {
        out += separator;
        append_json_string(out, key);
        out += ':';
        append_json(out, element);
        separator = ',';
      }
      out += value.empty() ? "{}" : "}";
      return;
    }
  }
}

std::optional<core::Value> read_json(std::string_view text, std::string* reason) {
  Parser parser(text);
  auto value = parser.whole();
  if (!value && reason != nullptr) *reason = parser.reason();
  return value;
}

}  // namespace hasten::tracking
