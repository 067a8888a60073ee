// The one reader of environment variables.
//
// Code that depends on the environment takes an `Environment` value, so that a test passes a map and a program the real
// variables. `getenv` occurs nowhere else (a test checks that). Errors name the variable, its value and what was
// expected. Every variable hasten reads is listed in docs/environment.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace hasten {

/// A snapshot of environment variables. Cheap to copy for a handful of variables; a value, so safe to share.
class Environment {
 public:
  /// Returns the environment of this process, as it is now.
  static Environment current();

  /// Exactly these variables (tests, other processes' environments).
  static Environment of(std::map<std::string, std::string> variables);

  /// Returns true if the variable is set to something. An empty value counts as unset, as in the shells' ${X:-…}.
  bool has(const std::string& name) const;

  /// Returns the value as it is; nothing if unset or empty.
  std::optional<std::string> text(const std::string& name) const;

  /// Returns a decimal integer. Throws: UsageError if it is no integer or lies outside [least, most].
  std::optional<int64_t> integer(const std::string& name, int64_t least = INT64_MIN, int64_t most = INT64_MAX) const;

  /// Returns a finite number. Throws: UsageError if it is none.
  std::optional<double> real(const std::string& name) const;

  /// 1 true yes on y t, 0 false no off n f, in any case (Accelerate's str_to_bool). Throws: UsageError
  /// otherwise.
  std::optional<bool> flag(const std::string& name) const;

  /// Returns one of a closed set. Throws: UsageError with "did you mean" otherwise.
  std::optional<std::string> choice(const std::string& name, const std::vector<std::string>& choices) const;

  const std::map<std::string, std::string>& variables() const noexcept { return variables_; }

  /// Reads a variable of this process and removes it, so that programs started later do not have it. For secrets. Not
  /// safe beside other threads that read the environment.
  static std::optional<std::string> take(const std::string& name);

  /// Sets these variables in this process; others stay. Not safe beside other threads (setenv is not), so
  /// only for a process that has just been forked.
  void apply() const;

 private:
  std::map<std::string, std::string> variables_;
};

}  // namespace hasten
