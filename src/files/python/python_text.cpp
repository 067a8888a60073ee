// Conversions; see python_text.h.
#include "files/python/python_text.h"

#include <charconv>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "hasten/core/number.h"

namespace hasten::files {
namespace {

void append_utf8(std::string& out, uint32_t code) {
  if (code < 0x80) {
    out += static_cast<char>(code);
  } else if (code < 0x800) {
    out += static_cast<char>(0xc0 | code >> 6);
    out += static_cast<char>(0x80 | (code & 63));
  } else if (code < 0x10000) {
    out += static_cast<char>(0xe0 | code >> 12);
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  } else {
    out += static_cast<char>(0xf0 | code >> 18);
    out += static_cast<char>(0x80 | (code >> 12 & 63));
    out += static_cast<char>(0x80 | (code >> 6 & 63));
    out += static_cast<char>(0x80 | (code & 63));
  }
}

std::optional<uint32_t> hex_number(std::string_view digits) {
  uint32_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value, 16);
  if (error != std::errc() || end != digits.data() + digits.size() || value > 0x10ffff) return std::nullopt;
  return value;
}

/// Divides little-endian bytes by 10^9 in place and returns the remainder.
uint32_t divide(std::vector<uint32_t>& words) {
  uint64_t rest = 0;
  for (size_t i = words.size(); i-- > 0;) {
    const uint64_t value = rest << 32 | words[i];
    words[i] = static_cast<uint32_t>(value / 1'000'000'000);
    rest = value % 1'000'000'000;
  }
  while (!words.empty() && words.back() == 0) words.pop_back();
  return static_cast<uint32_t>(rest);
}

}  // namespace

std::optional<PythonValue> int_of_bytes(std::string_view bytes) {
  if (bytes.size() > 4096) return std::nullopt;
  if (bytes.empty()) return PythonValue(0);
  const bool negative = (bytes.back() & 0x80) != 0;
  if (bytes.size() <= 8) {
    uint64_t value = negative ? ~uint64_t{0} : 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | static_cast<unsigned char>(bytes[i]);
    return PythonValue(static_cast<int64_t>(value));
  }
  std::vector<uint32_t> words((bytes.size() + 3) / 4, negative ? ~uint32_t{0} : 0);
  for (size_t i = 0; i < bytes.size(); ++i) {
    const unsigned shift = 8 * (i % 4);
    words[i / 4] = (words[i / 4] & ~(uint32_t{255} << shift)) | uint32_t{static_cast<unsigned char>(bytes[i])} << shift;
  }
  if (negative) {
    uint64_t carry = 1;
    for (uint32_t& word : words) {
      carry += static_cast<uint32_t>(~word);
      word = static_cast<uint32_t>(carry);
      carry >>= 32;
    }
  }
  while (!words.empty() && words.back() == 0) words.pop_back();
  std::vector<std::string> parts;  // of nine digits, the last ones first
  while (!words.empty()) {
    const std::string part = std::to_string(divide(words));
    parts.emplace_back(words.empty() ? 0 : 9 - part.size(), '0');
    parts.back() += part;
  }
  std::string digits(negative && !parts.empty() ? 1 : 0, '-');
  for (auto part = parts.rbegin(); part != parts.rend(); ++part) digits += *part;
  if (digits.empty()) digits.push_back('0');
  return PythonValue::big_int(digits);
}

std::string bytes_of_int(std::string_view decimal) {
  const bool negative = decimal.starts_with('-');
  if (negative) decimal.remove_prefix(1);
  std::string bytes;  // the magnitude
  for (const char digit : decimal) {
    unsigned carry = static_cast<unsigned>(digit - '0');
    for (char& byte : bytes) {
      carry += 10u * static_cast<unsigned char>(byte);
      byte = static_cast<char>(carry);
      carry >>= 8;
    }
    if (carry != 0) bytes += static_cast<char>(carry);
  }
  bytes += '\0';
  if (negative) {
    unsigned carry = 1;
    for (char& byte : bytes) {
      carry += static_cast<unsigned char>(~byte);
      byte = static_cast<char>(carry);
      carry >>= 8;
    }
  }
  const char sign = negative ? '\xff' : '\0';
  while (bytes.size() > 1 && bytes.back() == sign && (bytes[bytes.size() - 2] & 0x80) == (sign & 0x80))
    bytes.pop_back();
  return bytes;
}

std::optional<PythonValue> number_of_text(std::string_view line, unsigned char opcode) {
  if (opcode == 'F') {
    const auto value = core::python_number(line);
    return value ? std::optional(PythonValue(*value)) : std::nullopt;
  }
  if (opcode == 'I' && line == "00") return PythonValue(false);
  if (opcode == 'I' && line == "01") return PythonValue(true);
  if (line.ends_with('L')) line.remove_suffix(1);
  if (line.starts_with('+')) line.remove_prefix(1);
  const std::string_view digits = line.starts_with('-') ? line.substr(1) : line;
  if (digits.empty() || digits.size() > 10'000 || digits.find_first_not_of("0123456789") != std::string_view::npos)
    return std::nullopt;
  return PythonValue::big_int(line);
}

std::string utf8_of_latin1(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  for (const char byte : bytes) append_utf8(out, static_cast<unsigned char>(byte));
  return out;
}

std::optional<std::string> latin1_of_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      out += text[i];
    } else if ((byte == 0xc2 || byte == 0xc3) && i + 1 < text.size() && (text[i + 1] & 0xc0) == 0x80) {
      out += static_cast<char>((byte & 3) << 6 | (text[++i] & 63));
    } else {
      return std::nullopt;
    }
  }
  return out;
}

std::optional<std::string> unquoted(std::string_view line) {
  if (line.size() < 2 || line.front() != line.back() || (line.front() != '\'' && line.front() != '"'))
    return std::nullopt;
  line = line.substr(1, line.size() - 2);
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    if (line[i] != '\\') {
      append_utf8(out, static_cast<unsigned char>(line[i]));
      continue;
    }
    if (++i == line.size()) return std::nullopt;
    constexpr std::string_view kFrom = "ntr\\'\"0ab";
    if (line[i] == 'x') {
      const auto code = hex_number(line.substr(i + 1, 2));
      if (!code || i + 2 >= line.size()) return std::nullopt;
      append_utf8(out, *code);
      i += 2;
    } else if (const size_t at = kFrom.find(line[i]); at != std::string_view::npos) {
      out += std::string_view("\n\t\r\\'\"\0\a\b", 9)[at];
    } else {
      out += '\\';
      out += line[i];
    }
  }
  return out;
}

std::optional<std::string> unescaped(std::string_view line) {
  std::string out;
  for (size_t i = 0; i < line.size(); ++i) {
    const size_t digits = line.substr(i).starts_with("\\u") ? 4 : line.substr(i).starts_with("\\U") ? 8 : 0;
    if (digits == 0) {
      append_utf8(out, static_cast<unsigned char>(line[i]));
      continue;
    }
    if (line.size() - i < digits + 2) return std::nullopt;
    const auto code = hex_number(line.substr(i + 2, digits));
    if (!code) return std::nullopt;
    append_utf8(out, *code);
    i += digits + 1;
  }
  return out;
}

}  // namespace hasten::files
