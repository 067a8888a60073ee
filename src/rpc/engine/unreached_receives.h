// Which receive functions of a backward pass never get a gradient: a walk over the graph, apart from libtorch's types.
#pragma once

#include <cstdint>
#include <map>
#include <unordered_set>
#include <vector>

namespace hasten::rpc {

/// Returns the numbers of those of `awaited` that cannot be reached from `starts` (null ones are skipped) along
/// `next_of(node)`. Their partners wait for a gradient that will not come, and are settled with zeros.
template <class Node, class NextOf>
std::vector<int64_t> unreached(const std::vector<Node*>& starts, const std::map<Node*, int64_t>& awaited,
                               const NextOf& next_of) {
  std::unordered_set<Node*> seen;
  std::vector<Node*> todo(starts);
  while (!todo.empty()) {
    Node* const node = todo.back();
    todo.pop_back();
    if (node == nullptr || !seen.insert(node).second) continue;
    for (Node* const next : next_of(node)) todo.push_back(next);
  }
  std::vector<int64_t> missing;
  for (const auto& [node, number] : awaited) {
    if (!seen.contains(node)) missing.push_back(number);
  }
  return missing;
}

}  // namespace hasten::rpc
