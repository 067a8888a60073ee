// Writes YAML as PyYAML does (block style, keys sorted, lines folded behind column 80). So a file that goes through
// hasten is equal to Accelerate's. See config_file.h.
#include <algorithm>
#include <cstdio>

#include "hasten/launch/config/config_file.h"
#include "hasten/launch/config/config_value.h"
#include "launch/base/python_number.h"
#include "launch/config/config_syntax.h"

namespace hasten::launcher {
namespace {

using core::Value;

constexpr size_t kFoldBehind = 80;

enum class Style { kPlain, kSingle, kDouble };

bool is_blank_or_end(const std::string& text, size_t i) {
  return i >= text.size() || text[i] == ' ' || text[i] == '\t' || text[i] == '\n';
}

// Which of the three notations PyYAML takes for this text.
Style style_of(const std::string& text) {
  if (text.empty()) return Style::kSingle;
  bool plain = !text.starts_with("---") && !text.starts_with("...") && text != "=" && text != "<<";
  for (size_t i = 0; i < text.size(); ++i) {
    const auto letter = static_cast<unsigned char>(text[i]);
    if ((letter < 0x20 && letter != '\n') || letter >= 0x7f) return Style::kDouble;
    if (letter == '\n') plain = false;
    const bool before_blank = is_blank_or_end(text, i + 1);
    if (i == 0) {
      if (std::string_view("#,[]{}&*!|>'\"%@`").find(text[i]) != std::string_view::npos) plain = false;
      if ((letter == '?' || letter == ':' || letter == '-') && before_blank) plain = false;
    } else {
      if (letter == ':' && before_blank) plain = false;
      if (letter == '#' && is_blank_or_end(text, i - 1)) plain = false;
    }
    // A folded text cannot hold a blank next to a line break.
    const char next = i + 1 < text.size() ? text[i + 1] : '\0';
    if ((letter == ' ' && next == '\n') || (letter == '\n' && next == ' ')) return Style::kDouble;
  }
  if (text.front() == ' ' || text.back() == ' ') plain = false;
  if (plain && (!plain_scalar(text).is_string() || is_timestamp(text))) plain = false;
  return plain ? Style::kPlain : Style::kSingle;
}

class Writer {
 public:
  std::string write(const Value& values) {
    map(values, 0);
    return std::move(out_);
  }

 private:
  void put(const std::string& text) {
    out_ += text;
    column_ += text.size();
  }
  void new_line(size_t indent) {
    out_ += '\n';
    out_.append(indent, ' ');
    column_ = indent;
  }

  void map(const Value& values, size_t indent) {
    Value::Map sorted = values.as_map();
    std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    for (const auto& [key, value] : sorted) {
      out_.append(indent, ' ');
      column_ = indent;
      scalar(key, indent, /*may_fold=*/false);
      put(":");
      node(value, indent);
    }
  }

  void list(const Value& values, size_t indent) {
    for (const Value& element : values.as_list()) {
      out_.append(indent, ' ').append("-");
      column_ = indent + 1;
      element_of_list(element, indent);
    }
  }

  // The text behind "key:" or "-".
  void node(const Value& value, size_t indent) {
    if (value.is_map() && !value.empty()) {
      out_ += "\n";
      map(value, indent + 2);
    } else if (value.is_list() && !value.empty()) {
      out_ += "\n";
      list(value, indent);
    } else {
      put(" ");
      leaf(value, indent + 2);
      out_ += "\n";
    }
  }

  // The first key of a mapping, or the first element of a list, is behind the dash.
  void element_of_list(const Value& value, size_t indent) {
    Writer below;
    if (value.is_map() && !value.empty()) {
      below.map(value, indent + 2);
    } else if (value.is_list() && !value.empty()) {
      below.list(value, indent + 2);
    } else {
      node(value, indent);
      return;
    }
    out_.append(" ").append(below.out_, indent + 2);
  }

  void leaf(const Value& value, size_t indent) {
    switch (value.kind()) {
      case Value::Kind::kNull:
        return put("null");
      case Value::Kind::kBool:
        return put(value.as_bool() ? "true" : "false");
      case Value::Kind::kDouble:
        return put(real(value.as_double()));
      case Value::Kind::kString:
        return scalar(value.as_string(), indent, /*may_fold=*/true);
      case Value::Kind::kList:
        return put("[]");
      case Value::Kind::kMap:
        return put("{}");
      case Value::Kind::kInt:
        return put(python_text(value));
    }
  }

  static std::string real(double number) {
    std::string repr = python_repr(number);
    if (repr == "inf" || repr == "nan") return std::string(".").append(repr);
    if (repr == "-inf") return "-.inf";
    const size_t exponent = repr.find('e');
    if (exponent != std::string::npos && repr.find('.') == std::string::npos) repr.insert(exponent, ".0");
    return repr;
  }

  void scalar(const std::string& text, size_t indent, bool may_fold) {
    const Style style = style_of(text);
    if (style == Style::kDouble) {
      put(escaped(text));
      return;
    }
    const char* quote = style == Style::kSingle ? "'" : "";
    put(quote);
    for (size_t i = 0; i < text.size(); ++i) {
      const bool lone_blank =
          text[i] == ' ' && i > 0 && text[i - 1] != ' ' && i + 1 < text.size() && text[i + 1] != ' ';
      if (text[i] == '\n') {
        // Writes an additional break: a single line break would be read as a blank.
        for (out_ += '\n'; text[i + 1] == '\n'; ++i) out_ += '\n';
        new_line(indent);
      } else if (lone_blank && may_fold && column_ > kFoldBehind) {
        new_line(indent);
      } else if (text[i] == '\'' && style == Style::kSingle) {
        put("''");
      } else {
        put(std::string(1, text[i]));
      }
    }
    put(quote);
  }

  static std::string escaped(const std::string& text) {
    std::string result = "\"";
    for (size_t i = 0; i < text.size(); ++i) {
      const auto lead = static_cast<unsigned char>(text[i]);
      const size_t extra = lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : lead >= 0xc0 ? 1 : 0;
      uint32_t code = extra == 0 ? lead : lead & (0x3f >> extra);
      for (size_t k = 0; k < extra && i + 1 < text.size(); ++k) code = code << 6 | (text[++i] & 0x3f);
      result += escape(code);
    }
    return result + "\"";
  }

  static std::string escape(uint32_t code) {
    static constexpr std::pair<uint32_t, const char*> kShort[] = {
        {0, "\\0"},     {7, "\\a"},    {8, "\\b"},    {9, "\\t"},      {10, "\\n"},
        {11, "\\v"},    {12, "\\f"},   {13, "\\r"},   {27, "\\e"},     {'"', "\\\""},
        {'\\', "\\\\"}, {0x85, "\\N"}, {0xa0, "\\_"}, {0x2028, "\\L"}, {0x2029, "\\P"}};
    for (const auto& [letter, written] : kShort) {
      if (letter == code) return written;
    }
    if (code >= 0x20 && code < 0x7f) return std::string(1, static_cast<char>(code));
    char written[16];
    std::snprintf(written, sizeof written, code <= 0xff ? "\\x%02X" : code <= 0xffff ? "\\u%04X" : "\\U%08X", code);
    return written;
  }

  std::string out_;
  size_t column_ = 0;
};

}  // namespace

std::string to_yaml(const Value& values) {
  return Writer().write(values);
}

}  // namespace hasten::launcher
