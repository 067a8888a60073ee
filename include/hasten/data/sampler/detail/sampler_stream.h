// The random numbers that a sampler draws, the same on every rank.
//
// torch's samplers draw from the process's default CPU generator, which stands elsewhere on every rank
// (dropout, data augmentation). So rank 0's generator is the one that counts: at the start of an epoch its
// state goes to all ranks, and whenever the sampler may draw, the default generator stands there for that
// moment. In a world of one nothing is exchanged or swapped, so that every draw is the plain loop's.
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

  /// Starts an epoch: the stream of every rank stands where rank 0's default generator stands now.
  /// Collective: yes. Blocks: until rank 0 has called. Throws: CommError.
  void begin_epoch();

  /// Goes on in an epoch that began where start() said: until the next begin_epoch everything is drawn from
  /// there, in a world of one too, and the default generator moves along only if it stands at the same place.
  /// Collective: no. Blocks: no. Throws: UsageError for bytes that are no generator's state.
  void resume(const std::vector<uint8_t>& start);

  /// Where the epoch began; empty before the first one.
  std::vector<uint8_t> start() const;

  /// The seed that rank 0's default generator was given.
  /// Collective: yes. Blocks: until rank 0 has called. Throws: CommError.
  uint64_t seed_of_rank_0() const;

  /// Calls `draw` with the default generator at this stream and lets the stream go on from where that left
  /// it. Rank 0's default generator goes on with it unless something else has drawn from it since, so that
  /// what the program draws later is what the plain loop would draw; other ranks get theirs back as it was.
  /// Ranks that are threads of one process take turns.
  /// Collective: no. Blocks: while another thread of the process draws. Throws: what `draw` throws.
  void run(const std::function<void()>& draw);

 private:
  comm::Group group_;
  at::Tensor stream_, start_;
  bool resumed_ = false;
};

}  // namespace hasten::data
