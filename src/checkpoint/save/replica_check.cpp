// See replica_check.h.
#include "checkpoint/save/replica_check.h"

#include <algorithm>
#include <cstdint>

#include "hasten/core/text.h"

namespace hasten::checkpoint {

void ReplicaCheck::add(int rank, const core::Value& report) {
  const core::Value* hashes = report.find("replicas");
  if (hashes == nullptr) return;
  const auto& list = hashes->as_list();
  for (size_t i = 0; i < std::min(list.size(), by_piece_.size()); ++i) {
    if (!list[i].as_string().empty()) by_piece_[i][list[i].as_string()].push_back(rank);
  }
}

std::string ReplicaCheck::differences() const {
  std::string words;
  size_t count = 0;
  for (size_t i = 0; i < by_piece_.size(); ++i) {
    if (by_piece_[i].size() < 2 || ++count > 20) continue;
    words += text(words.empty() ? "" : "; ", '\'', pieces_[i].info.name, "' ", describe(by_piece_[i]));
  }
  if (count == 0) return {};
  return text(count, count == 1 ? " tensor: " : " tensors: ", words, count > 20 ? " …" : "");
}

std::string ReplicaCheck::describe(const RanksByHash& copies) {
  size_t most = 0, least = SIZE_MAX;
  for (const auto& [hash, ranks] : copies) most = std::max(most, ranks.size()), least = std::min(least, ranks.size());
  std::vector<int> odd;
  for (const auto& [hash, ranks] : copies) {
    if (most == least || ranks.size() < most) odd.insert(odd.end(), ranks.begin(), ranks.end());
  }
  std::sort(odd.begin(), odd.end());
  return text(most == least ? "is another on each side of ranks " : "differs on rank ", hasten::join(odd));
}

}  // namespace hasten::checkpoint
