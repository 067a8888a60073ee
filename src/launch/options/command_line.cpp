// Splitting words into options and the rest; see command_line.h.
#include "hasten/launch/options/command_line.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "hasten/core/count_text.h"
#include "hasten/core/env.h"
#include "hasten/core/error.h"
#include "hasten/core/strings.h"

namespace hasten::launcher {
namespace {

// The number in `word`, if it is nothing else.
template <class Number>
std::optional<Number> number_in(const std::string& word) {
  Number number = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), number);
  if (error != std::errc() || end != word.data() + word.size()) return std::nullopt;
  return number;
}

// "between 1 and 8", "of at least 1", or nothing where every number goes.
std::string range_of(const Option& option) {
  const bool open_below = option.least <= INT32_MIN;
  const bool open_above = option.most >= INT32_MAX;
  if (open_below && open_above) return "";
  if (open_above) return text(" of at least ", option.least);
  return text(" between ", static_cast<int64_t>(option.least), " and ", static_cast<int64_t>(option.most));
}

class Reader {
 public:
  Reader(std::span<const OptionGroup> groups, const std::vector<std::string>& words) : groups_(groups), words_(words) {}

  CommandLine read() {
    while (next_ < words_.size() && !line_.help) {
      const std::string& word = words_[next_];
      if (word.size() < 2 || word[0] != '-') break;
      ++next_;
      if (word == "--") break;
      if (word == "-h" || word == "--help") {
        line_.help = true;
      } else if (word[1] == '-') {
        read_long(word);
      } else {
        read_short(word);
      }
    }
    line_.rest.assign(words_.begin() + static_cast<std::ptrdiff_t>(next_), words_.end());
    return std::move(line_);
  }

 private:
  void read_long(const std::string& word) {
    const size_t equals = word.find('=');
    const std::string name = word.substr(2, equals == std::string::npos ? equals : equals - 2);
    const Option* option = find_option(groups_, name);
    if (option == nullptr) {
      unknown("--" + name);
    } else if (equals == std::string::npos) {
      take(*option, "--" + name);
    } else if (option->kind == OptionKind::kSwitch) {
      line_.problems.push_back(text("--", name, " takes no value, but got '", word.substr(equals + 1), "'"));
    } else {
      add(*option, "--" + name, word.substr(equals + 1));
    }
  }

  // -n 2, -n2, -n=2; switches can be combined (-mq).
  void read_short(const std::string& word) {
    for (size_t i = 1; i < word.size(); ++i) {
      const std::string written = std::string("-") + word[i];
      const Option* option = find_letter(word[i]);
      if (option == nullptr) {
        unknown(i == 1 ? word : written);
        return;
      }
      if (option->kind == OptionKind::kSwitch) {
        add(*option, written, "True");
      } else if (i + 1 == word.size()) {
        take(*option, written);
      } else {
        add(*option, written, word.substr(word[i + 1] == '=' ? i + 2 : i + 1));
        return;
      }
    }
  }

  const Option* find_letter(char letter) const {
    for (const OptionGroup& group : groups_) {
      for (const Option& option : group.options) {
        if (option.letter == letter) return &option;
      }
    }
    return nullptr;
  }

  // An option whose value is the next word.
  void take(const Option& option, const std::string& written) {
    if (option.kind == OptionKind::kSwitch) {
      add(option, written, "True");
    } else if (next_ == words_.size()) {
      line_.problems.push_back(text("--", option.name, " needs a value"));
    } else {
      add(option, written, words_[next_++]);
    }
  }

  void add(const Option& option, const std::string& written, const std::string& value) {
    if (const std::string problem = problem_with(option, value); !problem.empty()) {
      line_.problems.push_back(text("--", option.name, ": ", problem));
    }
    GivenOption& given = line_.options[std::string(option.name)];
    given.written = written;
    if (option.kind != OptionKind::kList) given.values.clear();
    given.values.push_back(value);
  }

  void unknown(const std::string& word) {
    std::string bare = word.substr(std::min<size_t>(word.size(), 2));
    std::replace(bare.begin(), bare.end(), '-', '_');
    if (const std::string_view today = removed_name(bare); !today.empty()) {
      line_.problems.push_back(text("unknown option '", word, "'; ", today));
      return;
    }
    std::vector<std::string> names;
    const bool dashed = word.find('-', 2) != std::string::npos;
    for (std::string name : option_names(groups_)) {
      if (dashed) std::replace(name.begin(), name.end(), '_', '-');
      names.push_back("--" + name);
    }
    names.push_back("--help");
    std::string guess = did_you_mean(word, names);
    line_.problems.push_back(text("unknown option '", word, "'", guess));
  }

  std::span<const OptionGroup> groups_;
  const std::vector<std::string>& words_;
  size_t next_ = 0;
  CommandLine line_;
};

}  // namespace

CommandLine read_command_line(std::span<const OptionGroup> groups, const std::vector<std::string>& words) {
  return Reader(groups, words).read();
}

std::string CommandLine::text(const std::string& name) const {
  const auto found = options.find(name);
  return found == options.end() ? "" : found->second.values.back();
}

std::string problem_with(const Option& option, const std::string& value) {
  const auto outside = [&](double number) { return !(number >= option.least && number <= option.most); };
  if (option.kind == OptionKind::kInteger) {
    const auto number = number_in<int64_t>(value);
    if (!number || outside(static_cast<double>(*number))) {
      return text("'", value, "' is not a whole number", range_of(option));
    }
  } else if (option.kind == OptionKind::kReal) {
    const auto number = number_in<double>(value);
    const std::string kind = option.value == "SECONDS" ? "number of seconds" : "number";
    if (!number || !std::isfinite(*number) || outside(*number)) {
      return text("'", value, "' is not a ", kind, range_of(option));
    }
  } else if (option.kind == OptionKind::kFlag && !core::parse_flag(value).has_value()) {
    return text("'", value, "' is neither true nor false");
  } else if (option.kind == OptionKind::kChoice) {
    const auto choices = choices_of(option);
    if (std::find(choices.begin(), choices.end(), value) == choices.end()) {
      const std::string guess = value.size() > 1 ? did_you_mean(value, choices) : "";
      return text("'", value, "' is not one of ", join(choices), guess);
    }
  }
  return "";
}

void refuse(std::string_view room, const std::vector<std::string>& problems, std::string_view advice) {
  if (problems.size() == 1) {
    const bool asks = problems.front().ends_with("?") || problems.front().ends_with(".");
    throw UsageError({room}, problems.front(), asks ? " " : ". ", advice);
  }
  throw UsageError({room}, count_text(problems.size(), "thing"), " are wrong:\n  ", join(problems, "\n  "), "\n",
                   advice);
}

}  // namespace hasten::launcher
