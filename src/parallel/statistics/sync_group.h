// SyncGroup: the connections of a model's synchronised BatchNorms, and what passes over them.
//
// If ranks may have run out of batches (`uneven`), each exchange is preceded by a round in which every rank announces
// its operation. Ranks without a batch answer with zeros, which to the merged statistics are a batch of no values. The
// connections are no other's, so that happens beside everything else a rank does.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/custom_class.h>

#include <array>
#include <atomic>
#include <utility>

#include "hasten/comm/group/group.h"

namespace hasten::parallel {

class SyncGroup : public torch::CustomClassHolder {
 public:
  explicit SyncGroup(comm::Group group) : group_(std::move(group)) {}
  const comm::Group& group() const noexcept { return group_; }
  void set_uneven(bool uneven) noexcept { uneven_ = uneven; }
  /// If true, backward exchanges zeros in the place of this rank's gradients (weightless_backward.h).
  void set_silent(bool silent) noexcept { silent_ = silent; }
  bool is_silent() const noexcept { return silent_; }

  /// Returns every rank's flat tensor, [world, numel].
  at::Tensor gather(const at::Tensor& mine) const;
  /// `tensor` becomes the sum over all ranks.
  void sum_(const at::Tensor& tensor) const;

  /// Takes part in the others' exchanges with nothing, until every rank has called this.
  /// Collective: yes. Blocks: until then. Throws: UsageError if ranks with batches do different things;
  /// CommError.
  void answer(c10::Device device) const;

 private:
  /// A rank's next operation, its numel and dtype. All zero: nothing.
  using Call = std::array<int64_t, 3>;
  /// Gives the call of the ranks that have one.
  Call hold_round(const Call& mine) const;
  void announce(int64_t kind, const at::Tensor& tensor) const;

  comm::Group group_;
  bool uneven_ = false;
  std::atomic<bool> silent_ = false;
};

}  // namespace hasten::parallel
