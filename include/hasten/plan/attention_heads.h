// AttentionHeads: the numbers of heads of a block of attention, which ranks of tensor parallelism share out.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hasten::plan {

struct HeadCount {
  /// "heads", "key-value heads".
  std::string name = {};
  int64_t heads = 0;
};

/// Returns what is wrong with dealing these heads to `parts` ranks, with the numbers that are possible: "8 heads, 2
/// key-value heads, tp 4; 1, 2 are possible". "" if each rank gets equally many.
std::string problem_with_heads(const std::vector<HeadCount>& counts, int64_t parts);

/// A base of modules beside torch::nn::Module.
class AttentionHeads {
 public:
  virtual ~AttentionHeads() = default;
  virtual std::vector<HeadCount> head_counts() const = 0;
};

}  // namespace hasten::plan
