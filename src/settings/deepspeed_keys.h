// The keys of a DeepSpeed configuration: one table that drives reading, messages, the engine and
// docs/from-deepspeed.md.
//
// Each key has a type, a default and an answer. Answers: honoured, honoured where parameters are filled at all, ignored
// with one line, refused, or removed by DeepSpeed itself. Follows DeepSpeed 0.19.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace hasten::plan {

enum class KeyType {
  kBool,
  kCount,  ///< a whole number, at least `least`; 2e8 counts
  kReal,   ///< a number, at least `least`
  kText,
  kChoice,   ///< one of `choices`
  kSection,  ///< a map whose keys are in the table
  kFree      ///< anything
};

enum class KeyAnswer {
  kHonoured,
  kWhereFilled,  ///< honoured where parameters are filled and released; nothing to do on one host
  kIgnored,      ///< one line, then ignored
  kRefused,
  kRemoved  ///< DeepSpeed refuses it as well
};

struct DeepSpeedKey {
  /// With dots: "zero_optimization.offload_optimizer.device".
  const char* path;
  KeyType type;
  /// JSON text of the default; "null" where there is none.
  const char* otherwise;
  KeyAnswer answer;
  /// For kIgnored, kRefused and kRemoved: the reason and what to write instead. Empty: no remark.
  const char* words = "";
  double least = 0;
  /// Separated by spaces.
  const char* choices = "";
};

/// Returns all keys, sections before their members, in the order of the documentation.
const std::vector<DeepSpeedKey>& deepspeed_keys();

/// Returns the entry of a path, also under its short name without "stage3_"; null if there is none.
const DeepSpeedKey* find_deepspeed_key(std::string_view path);

/// Returns the last names of the keys of a section ("" for the top), for did-you-mean.
std::vector<std::string> deepspeed_key_names(std::string_view section);

/// Returns true for sections in which DeepSpeed refuses unknown keys: zero_optimization with its sections, fp16, bf16.
bool is_strict_section(std::string_view section);

}  // namespace hasten::plan
