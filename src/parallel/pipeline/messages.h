// Messages: what the ranks of a pipeline send each other.
//
// Values of a device travel through the host's memory: messages of devices have no tags (docs/model_parallel.md).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/parallel/layout/rank_place.h"
#include "hasten/parallel/tensor/parallel_counts.h"

namespace hasten::parallel::pipeline {

// Tags of messages that are no transfer of a replayed forward.
inline constexpr int kRecordedTag = 1 << 29, kToldTag = 1 << 30, kHolderTag = kRecordedTag + 1,
                     kProbeTag = kRecordedTag + 2, kTiedTag = 1 << 28;

class Messages {
 public:
  explicit Messages(const comm::Group& group, RankPlace place = {})
      : group_(group.with_check(false)), place_(std::move(place)) {}

  const comm::Group& group() const noexcept { return group_; }
  int rank() const noexcept { return group_.rank(); }
  int num_ranks() const noexcept { return group_.world_size(); }

  /// Starts a message. Its memory stays until finish().
  void send(const at::Tensor& tensor, int to, int tag);
  /// Returns a new tensor without a gradient.
  at::Tensor receive(const std::vector<int64_t>& sizes, const at::TensorOptions& options, int from, int tag) const;
  /// The seconds that this rank has waited in receive() in all.
  double waited_s() const noexcept { return waited_s_; }
  /// Waits for the messages that this rank has sent.
  void finish();
  /// Returns how many messages this rank has sent so far, and their bytes.
  ExchangeCount sent() const noexcept { return sent_; }

  /// Sends numbers to all other ranks.
  void tell(const std::vector<int64_t>& words, int tag);
  std::vector<int64_t> received(int from, int tag) const;
  /// Tells the others that this rank cannot go on; received() throws the words there.
  void tell_failure(const std::string& words, int tag);

 private:
  comm::Group group_;
  RankPlace place_;
  ExchangeCount sent_ = {};
  std::vector<comm::Work<>> under_way_ = {};
  mutable double waited_s_ = 0;
};

}  // namespace hasten::parallel::pipeline
