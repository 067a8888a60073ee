// See parallel_counts.h.
#include "hasten/parallel/tensor/parallel_counts.h"

namespace hasten::parallel {

int64_t ParallelCounts::bytes() const {
  int64_t sum = 0;
  for (const auto& [kind, count] : kinds) sum += count.bytes;
  return sum;
}

ParallelCounts since(const ParallelCounts& now, const ParallelCounts& before) {
  ParallelCounts change{now.operators - before.operators, now.exchanges - before.exchanges, {}, {}};
  for (const auto& [name, number] : now.gathered) {
    const auto found = before.gathered.find(name);
    const int64_t more = number - (found == before.gathered.end() ? 0 : found->second);
    if (more > 0) change.gathered[name] = more;
  }
  for (const auto& [kind, count] : now.kinds) {
    const auto found = before.kinds.find(kind);
    const ExchangeCount old = found == before.kinds.end() ? ExchangeCount{} : found->second;
    if (count.calls > old.calls) change.kinds[kind] = {count.calls - old.calls, count.bytes - old.bytes};
  }
  return change;
}

}  // namespace hasten::parallel
