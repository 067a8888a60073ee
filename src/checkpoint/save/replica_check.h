// ReplicaCheck: whether ranks hold equal copies of the tensors that all of them should hold alike
// (SaveOptions::check_replicas). It compares the hashes in the ranks' reports. With more than two ranks those of the
// smaller number are named.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/save/save_plan.h"
#include "hasten/core/value.h"

namespace hasten::checkpoint {

class ReplicaCheck {
 public:
  /// The pieces stay valid as long as this is used.
  explicit ReplicaCheck(const std::vector<PieceInfo>& pieces) : pieces_(pieces), by_piece_(pieces.size()) {}

  /// Takes a rank's report. A report without hashes counts for nothing.
  void add(int rank, const core::Value& report);
  /// Returns the tensors whose copies differ and the ranks that hold them, "" if there are none.
  std::string differences() const;

 private:
  using RanksByHash = std::map<std::string, std::vector<int>>;
  static std::string describe(const RanksByHash& copies);

  const std::vector<PieceInfo>& pieces_;
  std::vector<RanksByHash> by_piece_;
};

}  // namespace hasten::checkpoint
