// DeepSpeedConfig: a DeepSpeed JSON configuration, queried and filled by dotted keys.
//
// Pure. The value type has the methods of the peer's HfDeepSpeedConfig and of its plugin. resolve() checks a
// configuration against the table of keys (deepspeed_keys.h) and gives every value with its default. All problems come
// in one message.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/core/value.h"

namespace hasten::plan {

class DeepSpeedConfig {
 public:
  DeepSpeedConfig() : config_(core::Value::map()) {}
  /// `source` appears in messages: a path, or "the configuration".
  explicit DeepSpeedConfig(core::Value config, std::string source = "the DeepSpeed configuration");

  /// Takes a map, the path of a file, JSON text (comments and trailing commas are allowed), or urlsafe base64 of JSON.
  /// Blocks: for the file. Throws: DataError with line and column; UsageError for anything else.
  static DeepSpeedConfig read(const core::Value& config);

  const core::Value& config() const noexcept { return config_; }
  core::Value& config() noexcept { return config_; }
  const std::string& source() const noexcept { return source_; }

  /// Returns the map that has the last part of the key, and that part. Null if a part before it is missing.
  std::pair<core::Value*, std::string> find_config_node(const std::string& key);
  /// Returns the value at a dotted key; null if it is not there.
  const core::Value* find(const std::string& key) const;
  core::Value get_value(const std::string& key, core::Value otherwise = {}) const;
  bool is_auto(const std::string& key) const;
  /// True if there and true; is_false: there and false.
  bool is_true(const std::string& key) const;
  bool is_false(const std::string& key) const;
  bool is_zero2() const;
  bool is_zero3() const;
  /// Stage 2 or 3 with an offload device of cpu or nvme.
  bool is_offload() const;
  /// Removes the section or value. Throws: UsageError if it is not there and must be.
  void del_config_sub_tree(const std::string& key, bool must_exist = false);

  using Values = std::vector<std::pair<std::string, core::Value>>;
  /// If the key is "auto": sets it to its value among `values` (throws UsageError if there is none). Else, with
  /// must_match, adds a line to `mismatches` if the two differ.
  void fill_match(const std::string& key, const Values& values, std::vector<std::string>& mismatches,
                  bool must_match = true);
  /// fill_match for every key of the configuration.
  /// Throws: UsageError for values that are missing, and one for all mismatches together.
  void process(const Values& values, bool must_match = true);
  /// As process, but leaves "auto" where no value is known.
  void fill(const Values& values);
  /// Dotted keys that are still "auto".
  std::vector<std::string> auto_keys() const;

 private:
  core::Value config_;
  std::string source_;
};

/// The three numbers of a batch: train = micro x accumulation x world.
struct BatchNumbers {
  int64_t train = 0, micro = 0, accumulation = 0;
};

/// DeepSpeed's rule: any two give the third, one alone gives the others with an accumulation of 1.
/// Throws: UsageError with the equation and its numbers.
BatchNumbers solve_batch(std::optional<int64_t> train, std::optional<int64_t> micro,
                         std::optional<int64_t> accumulation, int world_size);

/// A configuration with every default, after all checks.
class ResolvedDeepSpeed {
 public:
  /// Returns the value of a key of the table, given or its default. Old names and short names are resolved.
  const core::Value& at(const std::string& key) const;
  bool on(const std::string& key) const;
  int64_t count(const std::string& key) const;
  double real(const std::string& key) const;
  std::string text(const std::string& key) const;
  /// Returns a list of names; a single one where text is written, none for "auto" and null.
  std::vector<std::string> names(const std::string& key) const;
  /// Returns the same for classes, without Python's packages: "Linear" for "torch.nn.Linear".
  std::vector<std::string> class_names(const std::string& key) const;
  /// Returns true if a key was written, and not "auto".
  bool is_given(const std::string& key) const;

  int stage = 0;
  BatchNumbers batch = {};
  /// One line for each key that is ignored or renamed.
  std::vector<std::string> notes = {};
  /// Settings that the engine lacks (answers kRefused, settings that contradict each other); the caller throws them.
  std::vector<std::string> refusals = {};

 private:
  friend class DeepSpeedResolver;
  std::vector<std::pair<std::string, core::Value>> given_;
};

/// Checks types, ranges and unknown keys, applies old names, and solves the batch numbers. "auto" counts as not
/// written. `needs_batch`: the batch numbers must be there. Throws: UsageError with all
/// problems, each with its key.
ResolvedDeepSpeed resolve_deepspeed(const DeepSpeedConfig& config, int world_size, bool needs_batch = true);

/// Returns "fp32", "fp16" or "bf16" for DeepSpeed's names of these dtypes ("torch.half"); other text as it is.
std::string short_dtype(const std::string& name);

/// Throws UsageError with all refusals of a resolved configuration; nothing if there are none.
void require_supported(const ResolvedDeepSpeed& resolved, const DeepSpeedConfig& config);

}  // namespace hasten::plan
