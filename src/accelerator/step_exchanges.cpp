// See accelerator/step_exchanges.h.
#include "accelerator/step_exchanges.h"

#include <utility>

namespace hasten {
namespace {

class EndsStep : public training::StepPolicy {
 public:
  explicit EndsStep(std::weak_ptr<StepExchanges> exchanges) : exchanges_(std::move(exchanges)) {}
  void after_step(training::StepContext&) override {
    if (const auto held = exchanges_.lock()) held->end_step();
  }

 private:
  std::weak_ptr<StepExchanges> exchanges_;
};

}  // namespace

void StepExchanges::add(const std::string& axis, int ranks, const torch::nn::Module* model,
                        std::function<parallel::ParallelCounts()> counts) {
  std::erase_if(counted_, [&](const Counted& one) { return one.axis == axis && one.model == model; });
  const auto before = counts();
  counted_.push_back({axis, ranks, model, std::move(counts), before});
}

void StepExchanges::note_cuts(const torch::nn::Module& module, const std::map<std::string, parallel::Cut>& cuts) {
  cuts_[&module] = cuts;
}

std::shared_ptr<training::StepPolicy> StepExchanges::policy(const std::shared_ptr<StepExchanges>& exchanges) {
  return std::make_shared<EndsStep>(exchanges);
}

void StepExchanges::end_step() {
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
