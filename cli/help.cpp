// Laying help out; see help.h.
#include "help.h"

#include <unistd.h>

#include <algorithm>

#include "hasten/core/env.h"
#include "hasten/core/text.h"

namespace hasten::cli {
namespace {

using launcher::Option;
using launcher::OptionKind;

constexpr size_t kHelpColumn = 38;
constexpr size_t kWidth = 110;

std::string value_name(const Option& option) {
  if (!option.value.empty()) return std::string(option.value);
  switch (option.kind) {
    case OptionKind::kSwitch:
      return "";
    case OptionKind::kFlag:
      return "TRUE|FALSE";
    case OptionKind::kInteger:
      return "N";
    case OptionKind::kReal:
      return "X";
    case OptionKind::kChoice:
      return join(launcher::choices_of(option), "|");
    default:
      return "TEXT";
  }
}

// Returns the columns of UTF-8 text: bytes that continue a character have none.
size_t columns_of(std::string_view utf8) {
  return static_cast<size_t>(
      std::count_if(utf8.begin(), utf8.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

// `words` broken at blanks so that no line passes kWidth; later lines begin under the first.
std::string folded(const std::string& words, size_t column) {
  std::string result;
  size_t at = column;
  size_t begin = 0;
  while (begin < words.size()) {
    size_t end = words.find(' ', begin);
    if (end == std::string::npos) end = words.size();
    if (at > column && at + 1 + end - begin > kWidth) {
      result += '\n';
      result.append(column, ' ');
      at = column;
    } else if (at > column) {
      result += ' ';
      ++at;
    }
    result.append(words, begin, end - begin);
    at += end - begin;
    begin = end + 1;
  }
  return result;
}

class Layout {
 public:
  explicit Layout(bool colours)
      : bold_(colours ? "\033[1m" : ""), green_(colours ? "\033[32m" : ""), plain_(colours ? "\033[0m" : "") {}

  std::string title(std::string_view words) const { return text(bold_, words, ":", plain_, "\n"); }

  std::string line(const std::string& names, const std::string& value, const std::string& help) const {
    const size_t width = 2 + names.size() + (value.empty() ? 0 : 1 + columns_of(value));
    std::string line = text("  ", green_, names, plain_, value.empty() ? "" : " ", value);
    if (width + 2 > kHelpColumn) {
      line += '\n';
      line.append(kHelpColumn, ' ');
    } else {
      line.append(kHelpColumn - width, ' ');
    }
    return line.append(folded(help, kHelpColumn)).append("\n");
  }

 private:
  const char* bold_;
  const char* green_;
  const char* plain_;
};

std::string help_line(const Layout& layout, const Option& option) {
  std::string names = option.letter == 0 ? "" : text("-", option.letter, ", ");
  names.append("--").append(option.name);
  std::string help(option.help);
  if (!option.fallback.empty()) help += text(" (default ", option.fallback, ")");
  std::string value = value_name(option);
  if (option.kind == OptionKind::kChoice && option.value.empty() && value.size() > 30) value = "NAME";
  return layout.line(names, value, help);
}

}  // namespace

bool colours_wanted() {
  const auto environment = Environment::current();
  return isatty(STDOUT_FILENO) == 1 && !environment.has("NO_COLOR") && environment.text("TERM") != "dumb";
}

std::string help_of(const HelpText& help, std::span<const launcher::OptionGroup> groups, bool colours) {
  const Layout layout(colours);
  std::string result = text("Usage: ", help.usage, "\n\n", folded(help.summary, 0), "\n");
  for (const launcher::OptionGroup& group : groups) {
    result.append("\n").append(layout.title(group.title));
    if (!group.note.empty()) result += text("  ", group.note, "\n");
    for (const Option& option : group.options) result += help_line(layout, option);
  }
  result += text("\n", layout.title("Help"), layout.line("-h, --help", "", "This text"));
  return help.note.empty() ? result : text(result, "\n", folded(help.note, 0), "\n");
}

}  // namespace hasten::cli
