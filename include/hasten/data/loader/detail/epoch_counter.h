// The epoch of a loader and its progress. This part of a loader's state is the same for every kind of loader. It also
// has the checks of a state that is loaded.
//
// Part of map_loader.h; callers use Loader::state, load_state and set_epoch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>

#include "hasten/comm/group/group.h"
#include "hasten/core/error.h"
#include "hasten/data/loader/loader_state.h"
#include "hasten/data/sampler/detail/index_source.h"

namespace hasten::data::detail {

/// The facts that a state must agree with. An unknown seed or length agrees with any.
struct StateFacts {
  std::optional<uint64_t> seed;
  std::optional<size_t> num_samples;
  /// The order depends on the default generator.
  bool draws = false;
};

/// Returns the state with `batches` counted as samples in `position`, up to num_samples.
LoaderState counted_in_samples(LoaderState state, size_t batch_size);
/// Throws: UsageError that names the values of both sides.
void check_state(const LoaderState& state, const StateFacts& facts, const Origin& origin);
[[noreturn]] void throw_unordered_state(const Origin& origin);

/// For PipelineStages::failed: leaves an error's words for the other ranks, whose next collective throws them.
std::function<void(const std::exception&)> leaves_words(const comm::Group& group);

class EpochCounter {
 public:
  /// Passes begun so far.
  size_t begun() const noexcept { return now_->begun; }
  /// Makes the next pass this epoch, whole. If it is the epoch of a state just loaded, it is the rest of the epoch.
  void set_epoch(uint64_t epoch);

  /// Where the pass that begins now has to begin.
  EpochStart begin();
  /// For PipelineStages::received; a pass that is not the newest any more changes nothing.
  std::function<void(std::optional<size_t>)> follow() const;

  /// Epoch, position and, until a pass has begun from it, the loaded generator.
  LoaderState state() const;
  void load(const LoaderState& state);

 private:
  struct Now {
    uint64_t next_epoch = 0, epoch = 0, position = 0;
    size_t begun = 0;
    std::vector<uint8_t> generator = {};  // of a loaded state whose pass has not begun
    bool loaded = false;
  };
  std::shared_ptr<Now> now_ = std::make_shared<Now>();
};

}  // namespace hasten::data::detail
