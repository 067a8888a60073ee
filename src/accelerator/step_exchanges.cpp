// See accelerator/step_exchanges.h.
#include "accelerator/step_exchanges.h"

#include <utility>

namespace hasten {

void StepExchanges::add(const std::string& axis, int ranks, std::function<parallel::ParallelCounts()> counts) {
  const auto before = counts();
  counted_.push_back({axis, ranks, std::move(counts), before});
}

void StepExchanges::note_cuts(const torch::nn::Module& module, const std::map<std::string, parallel::Cut>& cuts) {
  cuts_[&module] = cuts;
}

void StepExchanges::after_step(training::StepContext&) {
  ++num_steps_;
  for (auto& one : counted_) {
    auto now = one.counts();
    one.last_step = parallel::since(now, one.before);
    one.before = std::move(now);
  }
}

std::vector<ParallelReport::Exchanges> StepExchanges::exchanges() const {
  std::vector<ParallelReport::Exchanges> all;
  for (const auto& one : counted_) all.push_back({one.axis, one.ranks, one.counts(), one.last_step});
  return all;
}

const std::map<std::string, parallel::Cut>& StepExchanges::cuts(const torch::nn::Module& module) const {
  static const std::map<std::string, parallel::Cut> kNone;
  const auto found = cuts_.find(&module);
  return found == cuts_.end() ? kNone : found->second;
}

}  // namespace hasten
