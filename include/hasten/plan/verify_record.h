// The record of a run under hasten verify, as its ranks have written it (docs/formats/verify.md).
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace hasten::plan {

/// A tensor by its 2-norm and its products with four vectors of +1 and -1.
struct VerifyDigest {
  double norm = 0;
  std::array<double, 4> products = {};
};
using VerifyDigests = std::map<std::string, VerifyDigest>;

/// A batch that a loop received. `share` is the rank whose batch it is.
struct VerifyBatch {
  int share = 0;
  bool is_prepared = true;
  std::vector<int64_t> positions = {};  ///< empty if not known
  std::string bytes = {};               ///< a hash; empty if not known
};

struct VerifyLoss {
  int share = 0;
  std::optional<double> value = {};
  std::optional<double> weight = {};
  std::string generator = {};  ///< a hash of its state before the backward
  bool drew = false;           ///< numbers were drawn since the batch came
};

/// A step of an optimizer, and what came before it since the last one.
struct VerifyStep {
  int64_t optimizer = 0;
  std::vector<VerifyBatch> batches = {};
  std::vector<VerifyLoss> losses = {};
  VerifyDigests gradients = {};
  VerifyDigests before = {};      ///< parameters at the step's first backward
  VerifyDigests parameters = {};  ///< behind the step, as buffers
  VerifyDigests buffers = {};
  /// Something of the program changed gradients between the backwards of the window.
  bool changed = false;
  /// Parameters changed between the backwards of the window.
  bool wrote = false;
  std::optional<double> norm = {};
  double scale = 1;
  bool skipped = false;
  std::map<std::string, double> rates = {};
};

struct VerifyRank {
  int rank = 0;
  int world_size = 1;
  int num_shares = 1;
  bool whole = false;
  int64_t most_steps = 0;
  /// It had a model when the first batch came, or the first backward.
  bool has_started = false;
  std::string precision = "no";
  int64_t shard_stage = 0;
  bool sync_batch_norm = false;
  std::set<std::string> unprepared = {};  ///< parameters of no prepared model
  VerifyDigests parameters = {};          ///< at the start, as buffers
  VerifyDigests buffers = {};
  std::vector<VerifyStep> steps = {};
  /// Steps of which a backward has begun.
  int64_t num_begun = 0;
  /// Its program came to its end by itself, with exit code 0.
  bool has_ended = false;
};

struct VerifyRun {
  /// By rank; empty if the program made no Accelerator.
  std::vector<VerifyRank> ranks = {};

  int world_size() const noexcept { return ranks.empty() ? 1 : ranks.front().world_size; }
  int num_shares() const noexcept;
  bool whole() const noexcept { return !ranks.empty() && ranks.front().whole; }
};

/// "one process", "2 processes". Returns the words for a run's processes.
std::string processes_text(const VerifyRun& run);

/// Returns the run of these lines. A last line without its end is left out: its rank was killed.
/// Throws: DataError with the line and the key that is wrong.
VerifyRun read_verify_run(std::string_view text, const std::string& name);

}  // namespace hasten::plan
