// The random numbers that a sampler draws, the same on every rank.
//
// torch's samplers draw from the process's default CPU generator, whose state differs between ranks (dropout, data
// augmentation). So rank 0's generator counts: at the start of an epoch its state goes to all ranks. Whenever the
// sampler may draw, the default generator has that state for the moment. In a world of one nothing is exchanged or
// swapped, so that every draw is the plain loop's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "hasten/comm/group/group.h"

namespace hasten::data {

class SamplerStream {
 public:
  explicit SamplerStream(comm::Group group) : group_(std::move(group)) {}

  /// Starts an epoch: the stream of every rank takes the present state of rank 0's default generator.
  /// Collective: yes. Blocks: until rank 0 has called. Throws: CommError.
  void begin_epoch();

  /// Goes on in an epoch that began at start()'s state. Until the next begin_epoch everything is drawn from there, in a
  /// world of one too. The default generator moves along only if it has the same state.
  /// Throws: UsageError for bytes that are no generator's state.
  void resume(const std::vector<uint8_t>& start);

  /// Where the epoch began; empty before the first one.
  std::vector<uint8_t> start() const;

  /// Returns the seed that rank 0's default generator was given.
  /// Collective: yes. Blocks: until rank 0 has called. Throws: CommError.
  uint64_t seed_of_rank_0() const;

  /// Calls `draw` with the default generator at this stream, and lets the stream go on from the generator's state after
  /// it. Rank 0's default generator goes on with it unless something else has drawn from it since. So later draws of
  /// the program are the plain loop's. Other ranks get theirs back as it was. Ranks that are threads of one process
  /// take turns.
  /// Blocks: while another thread of the process draws. Throws: the exceptions of `draw`.
  void run(const std::function<void()>& draw);

 private:
  comm::Group group_;
  at::Tensor stream_, start_;
  bool resumed_ = false;
};

}  // namespace hasten::data
