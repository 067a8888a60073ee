// Exchange: an all-reduce of few bytes as messages, one from every rank to every other, added up by each.
//
// Where latency rules, one round wins over a ring's 2 (n - 1) (Thakur et al., "Optimization of Collective
// Communication Operations in MPICH", 2005, section 4.5). Gloo's messages are also written by the thread that
// sends them, so that none of ProcessGroupGloo's worker threads has to wake, and at once where the receiver
// has said that it is ready: what training repeats has the same size again and again, so each all-reduce gets
// the next one's receives ready. Every rank adds up in the order of the ranks, so the results are equal bit
// for bit.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "comm/line.h"
#include "hasten/comm/backend.h"

namespace hasten::comm {

class Exchange {
 public:
  /// `native` outlives this object; messages have the 2^30 tags from `first_tag` on to themselves.
  Exchange(c10d::Backend& native, int first_tag) : native_(native), first_tag_(first_tag) {}

  /// Whether an all-reduce of this tensor is faster here; alike on all ranks.
  bool takes(const at::Tensor& tensor) const;
  /// All ranks call it in the same order. Nobody needs to wait for it: what is dropped goes on.
  Backend::Started all_reduce(const at::Tensor& tensor, ReduceOp op);

 private:
  using Works = std::vector<c10::intrusive_ptr<c10d::Work>>;
  /// Receives from all others; `parts` by rank.
  struct Inbox {
    int tag;
    Works works;
    std::vector<at::Tensor> parts;
  };
  /// All-reduces of one size; the last channel takes all that found none left.
  struct Channel {
    int first_tag;
    bool is_last;
    uint32_t num_opened = 0;
    std::optional<Inbox> next = {};
  };

  Channel& channel_for(int64_t num_bytes);
  Inbox open(Channel& channel, int64_t num_bytes);

  c10d::Backend& native_;
  const int first_tag_;
  /// By size. The same on all ranks, since they all call the same.
  std::map<int64_t, Channel> channels_;
  /// Waits for those who only ask or have gone.
  std::shared_ptr<Line> line_ = std::make_shared<Line>();
};

}  // namespace hasten::comm
