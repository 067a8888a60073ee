// YAML through yaml-cpp, with PyYAML's rules where the two differ: one document, no tabs before a token, no
// bytes that are not UTF-8, merge keys. See config_syntax.h.
#include <yaml-cpp/yaml.h>

#include <regex>
#include <sstream>

#include "hasten/core/count_text.h"
#include "hasten/core/error.h"
#include "hasten/core/utf8.h"
#include "launch/config/config_syntax.h"

namespace hasten::launcher {
namespace {

using core::Value;

// The offset of the first byte that is no UTF-8, npos if there is none.
size_t not_utf8(const std::string& bytes) {
  for (size_t i = 0; i < bytes.size();) {
    const size_t length = core::utf8_length(std::string_view(bytes).substr(i));
    if (length == 0) return i;
    i += length;
  }
  return std::string::npos;
}

class Converter {
 public:
  explicit Converter(const std::string& path) : path_(path) {}

  Value value(const YAML::Node& node) const {
    if (node.IsMap()) return map(node);
    if (node.IsSequence()) {
      auto list = Value::list();
      for (const YAML::Node& element : node) list.push_back(value(element));
      return list;
    }
    if (!node.IsScalar()) return {};
    const std::string& tag = node.Tag();
    if (tag == "!" || tag == "tag:yaml.org,2002:str") return node.Scalar();
    if (tag == "?" && node.Scalar() == "=") refuse_syntax(path_, text("'=' wants quotes ", place_of(node)));
    if (tag == "tag:yaml.org,2002:float") {
      Value read = plain_scalar(node.Scalar());
      return read.is_int() ? Value(read.as_double()) : read;
    }
    if (tag == "?" || tag.empty() || tag.starts_with("tag:yaml.org,2002:")) return plain_scalar(node.Scalar());
    refuse_syntax(path_, text("unknown tag '", tag, "' ", place_of(node)));
  }

 private:
  static void add_missing(const Value& from, Value& to) {
    for (const auto& [key, value] : from.as_map()) {
      if (!to.contains(key)) to[key] = value;
    }
  }

  static std::string place_of(const YAML::Node& node) { return text("in line ", node.Mark().line + 1); }

  Value map(const YAML::Node& node) const {
    auto result = Value::map(), merged = Value::map();
    for (const auto& entry : node) {
      if (!entry.first.IsScalar()) refuse_syntax(path_, text("a key that is no text ", place_of(entry.first)));
      const std::string& key = entry.first.Scalar();
      if (key == "<<" && entry.first.Tag() == "?") {
        merge(entry.second, merged);
      } else if (result.contains(key)) {
        refuse_syntax(path_, text("'", key, "' stands there twice, again ", place_of(entry.first)));
      } else {
        result[key] = value(entry.second);
      }
    }
    add_missing(merged, result);
    return result;
  }

  // `<<: *other`: the other mapping's entries, unless they are given here.
  void merge(const YAML::Node& node, Value& merged) const {
    if (node.IsSequence()) {
      for (const YAML::Node& element : node) merge(element, merged);
    } else if (node.IsMap()) {
      add_missing(map(node), merged);
    } else {
      refuse_syntax(path_, text("'<<' wants a mapping ", place_of(node)));
    }
  }

  const std::string& path_;
};

// PyYAML takes a tab in quotes and comments only; yaml-cpp takes it nearly everywhere.
void refuse_tabs(const std::string& content, const std::string& path) {
  static const std::regex quoted_or_comment("'[^']*'|\"(\\\\.|[^\"\\\\])*\"|(^| )#.*");
  if (content.find('\t') == std::string::npos) return;
  std::istringstream lines(content);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (std::regex_replace(line, quoted_or_comment, "").find('\t') != std::string::npos) {
      refuse_syntax(path, text("a tab in line ", number, "; use blanks"));
    }
  }
}

void refuse_bytes(const std::string& content, const std::string& path) {
  if (const size_t offset = not_utf8(content); offset != std::string::npos) {
    refuse_syntax(path, text("byte ", offset, " is no UTF-8"));
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const auto byte = static_cast<unsigned char>(content[i]);
    const auto next = static_cast<unsigned char>(i + 1 < content.size() ? content[i + 1] : 0);
    const auto last = static_cast<unsigned char>(i + 2 < content.size() ? content[i + 2] : 0);
    const bool of_ascii = (byte < 0x20 && byte != '\n' && byte != '\r' && byte != '\t') || byte == 0x7f;
    const bool behind_ascii = byte == 0xc2 && next < 0xa0 && next != 0x85;
    const bool no_letter = byte == 0xef && next == 0xbf && last >= 0xbe;  // U+FFFE and U+FFFF
    if (of_ascii || behind_ascii || no_letter) {
      refuse_syntax(path, text("byte ", i, " is a control character"));
    }
  }
}

// Line breaks of YAML 1.1 that yaml-cpp does not know: a carriage return alone, and U+0085.
std::string with_plain_breaks(const std::string& content) {
  std::string result;
  for (size_t i = 0; i < content.size(); ++i) {
    const char next = i + 1 < content.size() ? content[i + 1] : '\0';
    const bool next_line = content[i] == '\xc2' && next == '\x85';
    if (next_line || (content[i] == '\r' && next == '\n')) ++i;
    result += next_line || content[i] == '\r' ? '\n' : content[i];
  }
  return result;
}

}  // namespace

void refuse_syntax(const std::string& path, const std::string& reason) {
  throw UsageError({"config"}, path, ": ", reason, ". Correct the file, or write a new one with hasten config.");
}

Value read_yaml(const std::string& bytes, const std::string& path) {
  refuse_bytes(bytes, path);
  const std::string content = with_plain_breaks(bytes);
  refuse_tabs(content, path);
  try {
    const std::vector<YAML::Node> documents = YAML::LoadAll(content);
    if (documents.size() > 1)
      refuse_syntax(path, text("it holds ", count_text(documents.size(), "document"), "; expected one"));
    return documents.empty() ? Value() : Converter(path).value(documents.front());
  } catch (const YAML::Exception& error) {
    refuse_syntax(path, text("line ", error.mark.line + 1, ", column ", error.mark.column + 1, ": ", error.msg));
  }
}

}  // namespace hasten::launcher
