// Typed reading of environment variables; see env.h.
#include "hasten/core/env.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <string_view>

#include "hasten/core/error.h"
#include "hasten/core/strings.h"

namespace hasten {
namespace {

[[noreturn]] void refuse(const std::string& name, const std::string& value, const std::string& expected) {
  throw UsageError({"env"}, name, "='", value, "' is not ", expected, ". Correct it or unset it.");
}

}  // namespace

Environment Environment::current() {
  Environment snapshot;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view line(*entry);
    const size_t equals = line.find('=');
    if (equals != std::string_view::npos) snapshot.variables_.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return snapshot;
}

Environment Environment::of(std::map<std::string, std::string> variables) {
  Environment snapshot;
  snapshot.variables_ = std::move(variables);
  return snapshot;
}

bool Environment::has(const std::string& name) const {
  return text(name).has_value();
}

std::optional<std::string> Environment::text(const std::string& name) const {
  const auto found = variables_.find(name);
  if (found == variables_.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<int64_t> Environment::integer(const std::string& name, int64_t least, int64_t most) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
  if (error != std::errc() || end != value->data() + value->size()) refuse(name, *value, "an integer");
  if (number < least || number > most) {
    refuse(name, *value,
           most == INT64_MAX ? hasten::text("at least ", least) : hasten::text("between ", least, " and ", most));
  }
  return number;
}

std::optional<double> Environment::real(const std::string& name) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  double number = 0;
  const auto [end, error] = std::from_chars(value->data(), value->data() + value->size(), number);
  if (error != std::errc() || end != value->data() + value->size() || !std::isfinite(number)) {
    refuse(name, *value, "a finite number");
  }
  return number;
}

std::optional<bool> Environment::flag(const std::string& name) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  if (const auto flag = core::parse_flag(*value)) return flag;
  refuse(name, *value, "a flag (1, true, yes, on, 0, false, no, off)");
}

std::optional<std::string> Environment::choice(const std::string& name, const std::vector<std::string>& choices) const {
  const auto value = text(name);
  if (!value) return std::nullopt;
  const std::string word = core::lower(*value);
  if (std::find(choices.begin(), choices.end(), word) != choices.end()) return word;
  refuse(name, *value, "one of " + join(choices) + did_you_mean(word, choices));
}

std::optional<std::string> Environment::take(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  std::string taken = value;
  unsetenv(name.c_str());
  return taken;
}

void Environment::apply() const {
  for (const auto& [name, value] : variables_) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
}

}  // namespace hasten
