// StepExchanges: the exchanges between the ranks of a model, counted from step to step, for explain_parallel().
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/accelerator/parallel_report.h"
#include "hasten/parallel/layout/cut.h"
#include "hasten/parallel/tensor/parallel_counts.h"
#include "hasten/training/step_policy.h"

namespace torch::nn {
class Module;
}

namespace hasten {

class StepExchanges {
 public:
  /// Returns a policy that ends a step here. It does not keep this object: gradients keep their policies, and may
  /// outlive the Accelerator and its groups.
  static std::shared_ptr<training::StepPolicy> policy(const std::shared_ptr<StepExchanges>& exchanges);

  /// Adds the counts of an axis. Those of the same axis and model that were added before go; null: of sequences.
  void add(const std::string& axis, int ranks, const torch::nn::Module* model,
           std::function<parallel::ParallelCounts()> counts);
  void note_cuts(const torch::nn::Module& module, const std::map<std::string, parallel::Cut>& cuts);

  void end_step();

  std::vector<ParallelReport::Exchanges> exchanges() const;
  /// Returns the cuts of a model's parameters by name.
  const std::map<std::string, parallel::Cut>& cuts(const torch::nn::Module& module) const;
  int64_t num_steps() const noexcept { return num_steps_; }

 private:
  struct Counted {
    std::string axis;
    int ranks;
    const torch::nn::Module* model;
    std::function<parallel::ParallelCounts()> counts;
    parallel::ParallelCounts before = {}, last_step = {};
  };
  std::vector<Counted> counted_;
  std::map<const torch::nn::Module*, std::map<std::string, parallel::Cut>> cuts_;
  int64_t num_steps_ = 0;
};

}  // namespace hasten
