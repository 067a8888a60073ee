// Golden cases: what the peers really do, from JSON files, and one way to judge and count what we do.
//
// The files lie in tests/golden (or $HASTEN_GOLDEN_DIR: any folder of that form). A case must be as expected.
// One tagged with a quirk may instead be as fixed, or follow a rule of ours that docs/differences.md states;
// the rule is given here as a function of the case, apart from the code under test, and touches only the keys
// the quirk is about.
#pragma once

#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace hasten::testing {

struct GoldenCase {
  std::string name;    ///< "grid/n4_b2_w2"
  std::string family;  ///< "grid"
  nlohmann::json input;
  nlohmann::json expected;
  nlohmann::json fixed;  ///< keys that differ from expected; null where none are given
  std::vector<std::string> quirks;
};

/// How far numbers that are no integers may be off; the sum of both parts.
struct Tolerance {
  double relative = 0.0;
  double absolute = 0.0;
  bool is_none() const noexcept { return relative == 0.0 && absolute == 0.0; }
};

/// What a documented difference gives instead: the keys it is about, with our values.
using GoldenRule = std::function<nlohmann::json(const GoldenCase&)>;

class GoldenTopic {
 public:
  /// The cases of `topic` (the file's name without .json) that `selected` takes, those of all families
  /// without it. Throws: std::runtime_error if the file cannot be read or nothing is selected.
  explicit GoldenTopic(std::string topic, const std::function<bool(const GoldenCase&)>& selected = {});

  const std::vector<GoldenCase>& cases() const noexcept { return cases_; }
  /// Calls `fn` with each case. What it throws is a red case, and the next one follows.
  void for_each(const std::function<void(const GoldenCase&)>& fn) const;
  /// What the file has beside its cases ("models", versions).
  const nlohmann::json& beside() const noexcept { return beside_; }

  /// The rule that holds for cases with this quirk.
  void on_quirk(const std::string& quirk, GoldenRule rule) { rules_[quirk] = std::move(rule); }

  /// A rule that holds for every case, after those of its quirks: a difference that is ours and no quirk of
  /// the peer's. It sees what is wanted so far as `expected`.
  void on_every_case(GoldenRule rule) { everywhere_.push_back(std::move(rule)); }

  /// What the golden cases' README allows their topic; nothing by itself.
  void tolerate(const Tolerance& tolerance) { tolerance_ = tolerance; }

  /// Compares what we gave, key by key of `expected`, and counts it; a GoogleTest failure if it is neither as
  /// expected, nor as fixed, nor by a rule. Call it once for each case.
  void judge(const GoldenCase& golden, const nlohmann::json& given);
  /// The same for what `run` returns. What it throws is a red case of its own, and the next one is judged all the same:
  /// an unknown option, a missing key, a value of another type.
  void judge(const GoldenCase& golden, const std::function<nlohmann::json()>& run);

  /// Prints "golden TOPIC: N of M cases (E as expected, F as fixed, D by a documented difference)"; a
  /// GoogleTest failure if not every selected case was judged well.
  void finish() const;

 private:
  std::string topic_;
  std::vector<GoldenCase> cases_;
  /// Why entries of the file are no cases (a name that is a number, an input that is missing): red, too.
  std::vector<std::string> malformed_;
  nlohmann::json beside_;
  std::map<std::string, GoldenRule> rules_;
  std::vector<GoldenRule> everywhere_;
  Tolerance tolerance_;
  size_t as_expected_ = 0, as_fixed_ = 0, by_difference_ = 0;
};

/// What `run` returns, or {"exception": …} for what it throws, which no case expects.
nlohmann::json outcome_of(const std::function<nlohmann::json()>& run);

/// The number of ranks that a case asks for; 1 where it does not say so, or says something else than a number.
int num_ranks_of(const GoldenCase& golden, const char* key = "num_processes");
/// Returns the number. Throws: std::runtime_error for anything but an integer above 0, by which a case may be divided.
int64_t positive(const nlohmann::json& value);
/// The folder of the golden cases: $HASTEN_GOLDEN_DIR, or the project's own.
std::string golden_folder();

/// The outcome of an error: compared by kind. Our UsageError is Python's ValueError.
nlohmann::json golden_error(const std::string& python_class);

}  // namespace hasten::testing
