// RecomputeRecorder: keeps the calls of a thread's regions, and says for a tensor which call makes it.
//
// A region's calls are found by the storage of their results. A tensor of an earlier region is kept where the next one
// uses it, so that a region replays from its own inputs.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "hasten/interception/interceptor.h"
#include "parallel/recompute/replay.h"

namespace hasten::parallel {

/// A tensor that autograd keeps: as a ticket, or as it is.
struct SavedSlot {
  std::optional<Ticket> ticket;
  std::optional<KeptTensor> kept;
};

class RecomputeRecorder : public interception::Interceptor {
 public:
  /// The regions of a model's parameters; those of kNoRegion end a region.
  using Regions = std::unordered_map<const c10::TensorImpl*, int>;
  static constexpr int kNoRegion = -1;

  /// Names of operators, without "aten::".
  using Names = std::unordered_set<std::string>;

  /// With `regions` an operator that reads a parameter begins the parameter's region. Without them all is one region.
  /// `away`: inputs of regions wait on the host. `chosen`: what these operators make is dropped, and nothing else;
  /// null: all is.
  explicit RecomputeRecorder(std::optional<Regions> regions, std::shared_ptr<AwayTensors> away = {},
                             std::shared_ptr<const Names> chosen = {});

  interception::Level level() const override { return interception::Level::kEveryOperator; }
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override;

  /// Returns where a tensor that autograd keeps is to be had. Of the results of the running operator it is known only
  /// when that ends; the slot changes then.
  std::shared_ptr<SavedSlot> save(const at::Tensor& tensor);

  /// Records what a function, of which the dispatcher sees nothing, has made of a tensor. A later call with the same
  /// values gives the same result. Without effect outside of a region, and without gradients.
  void note_made(const at::Tensor& result, const at::Tensor& of, ReplayedCall::Function function);

  bool in_region() const noexcept { return region_ != kNoRegion; }
  /// Returns true if an operator of `chosen` ran in a region.
  bool met_chosen() const noexcept { return met_chosen_; }

  /// The recorder of this thread's innermost scope; null outside, below autograd and while a call is replayed.
  static RecomputeRecorder* current();

 private:
  friend class RecorderScope;
  struct Made {
    // The weak reference keeps the address from being used again.
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::shared_ptr<ReplayedCall> call;
    size_t result;
    int64_t version;
    at::ScalarType dtype;
    /// False: autograd's copy of it stays, and calls that use it take it from there.
    bool is_chosen;
  };
  class Call;
  class OperatorScope;

  void enter_region_of(const interception::Stack& stack, size_t begin);
  std::optional<Ticket> ticket_of(const at::Tensor& tensor) const;
  /// Returns the ticket of a tensor that autograd may do without. One that it keeps is an input of the region from then
  /// on.
  std::optional<Ticket> droppable(const at::Tensor& tensor);
  const Made* find_made(const at::Tensor& tensor) const;
  bool is_chosen(const c10::OperatorHandle& op) const;
  void settle();

  std::optional<Regions> regions_;
  std::shared_ptr<AwayTensors> away_;
  std::shared_ptr<const Names> chosen_;
  int region_ = kNoRegion;
  std::shared_ptr<std::recursive_mutex> mutex_;
  std::unordered_map<const c10::StorageImpl*, Made> made_;
  /// Saved tensors of operators under way, with what they hold for now.
  std::vector<std::shared_ptr<SavedSlot>> pending_;
  /// Operators under way, one inside the other.
  int depth_ = 0;
  /// The innermost of them is one of libtorch's, so that the program cannot reach what operators inside it make.
  bool inside_libtorch_ = false;
  /// One of the operators under way is of `chosen`; and whether any was.
  bool inside_chosen_ = false, met_chosen_ = false;
};

/// While it exists, the recorder is the thread's.
class RecorderScope {
 public:
  explicit RecorderScope(std::shared_ptr<RecomputeRecorder> recorder);
  ~RecorderScope();
  RecorderScope(const RecorderScope&) = delete;
  RecorderScope& operator=(const RecorderScope&) = delete;

 private:
  std::shared_ptr<RecomputeRecorder> recorder_;
  RecomputeRecorder* before_;
  interception::EveryOperatorScope scope_;
};

/// Tensors that were dropped and kept since the process started.
int64_t dropped_tensors() noexcept;
int64_t kept_tensors() noexcept;

}  // namespace hasten::parallel
