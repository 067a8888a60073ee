// JSON text of a Value; see json.h.
#include <charconv>
#include <cmath>

#include "hasten/core/json.h"
#include "hasten/core/utf8.h"

namespace hasten::core {
namespace {

void append_escape(std::string& out, unsigned code) {
  constexpr const char* kHex = "0123456789abcdef";
  if (code >= 0x10000) {
    append_escape(out, 0xD800 + ((code - 0x10000) >> 10));
    append_escape(out, 0xDC00 + ((code - 0x10000) & 0x3FF));
    return;
  }
  out += "\\u";
  for (int shift = 12; shift >= 0; shift -= 4) out += kHex[code >> shift & 15];
}

unsigned letter_of(std::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  unsigned code = bytes.size() == 1 ? lead : lead & (0x7FU >> bytes.size());
  for (size_t i = 1; i < bytes.size(); ++i) code = code << 6 | (static_cast<unsigned char>(bytes[i]) & 63U);
  return code;
}

// The shortest digits that read back as the same number, with a point or an exponent: 1.0, 0.001, 1e-05, 1e+15.
void append_real(std::string& out, double number) {
  char digits[64];
  const auto scientific = std::to_chars(digits, digits + sizeof digits, number, std::chars_format::scientific);
  const std::string_view all(digits, static_cast<size_t>(scientific.ptr - digits));
  const size_t e = all.find('e');
  int exponent = 0;
  std::from_chars(digits + e + (all[e + 1] == '+' ? 2 : 1), scientific.ptr, exponent);
  if (exponent < -4 || exponent > 14) {
    out += all;
    return;
  }
  const auto fixed = std::to_chars(digits, digits + sizeof digits, number, std::chars_format::fixed);
  const std::string_view plain(digits, static_cast<size_t>(fixed.ptr - digits));
  out += plain;
  if (plain.find('.') == std::string_view::npos) out += ".0";
}

class JsonWriter {
 public:
  JsonWriter(std::string& out, const JsonStyle& style) : out_(out), style_(style) {}

  void write(const Value& value, int level) {
    switch (value.kind()) {
      case Value::Kind::kNull:
        out_ += "null";
        return;
      case Value::Kind::kBool:
        out_ += value.as_bool() ? "true" : "false";
        return;
      case Value::Kind::kInt: {
        char digits[24];
        out_.append(digits, std::to_chars(digits, digits + sizeof digits, value.as_int()).ptr);
        return;
      }
      case Value::Kind::kDouble: {
        const double number = value.as_double();
        if (std::isfinite(number)) return append_real(out_, number);
        const char* const name = std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
        return write(Value::map({{"$double", name}}), level);
      }
      case Value::Kind::kString:
        return append_json_string(out_, value.as_string(), style_.ascii);
      case Value::Kind::kList:
      case Value::Kind::kMap:
        return write_elements(value, level);
    }
  }

 private:
  void new_line(int level) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent * level), ' ');
  }

  void write_elements(const Value& value, int level) {
    const bool is_map = value.is_map();
    out_ += is_map ? '{' : '[';
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out_ += ',';
      new_line(level + 1);
      if (is_map) {
        append_json_string(out_, value.as_map()[i].first, style_.ascii);
        out_ += style_.indent < 0 ? ":" : ": ";
      }
      write(is_map ? value.as_map()[i].second : value.as_list()[i], level + 1);
    }
    if (!value.empty()) new_line(level);
    out_ += is_map ? '}' : ']';
  }

  std::string& out_;
  const JsonStyle& style_;
};

}  // namespace

void append_json_string(std::string& out, std::string_view text, bool ascii) {
  constexpr std::string_view kLetters = "\"\\\b\f\n\r\t", kNames = "\"\\bfnrt";
  out += '"';
  const auto is_plain = [](char c) { return c >= 0x20 && c < 0x7F && c != '"' && c != '\\'; };
  for (size_t i = 0; i < text.size();) {
    const size_t plain = i;
    while (i < text.size() && is_plain(text[i])) ++i;
    out.append(text.substr(plain, i - plain));
    if (i == text.size()) break;
    const size_t length = utf8_length(text.substr(i));
    const std::string_view bytes = length == 0 ? "\xEF\xBF\xBD" : text.substr(i, length);
    const char letter = bytes[0];
    i += length == 0 ? 1 : length;
    if (bytes.size() > 1) {
      if (ascii) {
        append_escape(out, letter_of(bytes));
      } else {
        out += bytes;
      }
    } else if (const size_t index = kLetters.find(letter); index != std::string_view::npos) {
      out += {'\\', kNames[index]};
    } else if (letter < 0x20 || (ascii && letter == 0x7F)) {
      append_escape(out, static_cast<unsigned char>(letter));
    } else {
      out += letter;
    }
  }
  out += '"';
}

std::string write_json(const Value& value, const JsonStyle& style) {
  std::string out;
  JsonWriter(out, style).write(value, 0);
  return out;
}

}  // namespace hasten::core
