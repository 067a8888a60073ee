// Advice: calls that a training on several ranks mostly has, and that a program has left out. Each is said once.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "hasten/core/log.h"
#include "hasten/parallel/ddp/ddp.h"
#include "hasten/training/step_policy.h"

namespace hasten {

class Advice : public training::StepPolicy {
 public:
  /// `world_size`: ranks whose gradients are averaged.
  Advice(Logger log, int world_size) : log_(std::move(log)), world_size_(world_size) {}

  struct Facts {
    /// Batches a step (gradient_accumulation_steps).
    int64_t num_steps = 1;
    /// Calls of step() and zero_grad() of prepared optimizers so far.
    int64_t optimizer_calls = 0;
    /// A scope of accumulate() is open.
    bool is_accumulating = false;
    /// Losses are multiplied by a scale (fp16).
    bool scales_loss = false;
  };

  /// Notes a model's parameters: those it comes with, and those it has once it is prepared.
  void note_model(const torch::nn::Module& module);
  /// Notes an optimizer before its parameters are copied.
  void note_optimizer(const torch::optim::Optimizer& optimizer);
  void note_loader() noexcept { has_loader_ = true; }
  void note_accumulate() noexcept {
    accumulates_ = true;
    batches_since_accumulate_ = 0;
  }
  /// Notes that the backward has a batch of its own.
  void note_batch() noexcept { ++batches_since_accumulate_; }
  /// Notes a prepared model's exchange of gradients.
  void note_exchange(std::weak_ptr<const parallel::Ddp> exchange) { exchanges_.push_back(std::move(exchange)); }
  /// Says that no loader was prepared, or that an optimizer steps parameters of no prepared model, if so. Says that
  /// accumulate() is not called, or once for many batches, and that nothing prepared steps in fp16.
  void before_backward(const Facts& facts);
  /// Says that an optimizer steps parameters of no prepared model, or gradients that were not exchanged, if so.
  void before_step(training::StepContext&) override;
  /// Says that nothing was prepared by the run's ranks, if so.
  void at_end(int num_ranks) const;

 private:
  // An optimizer until the first backward or step behind its preparation, when the models have been prepared as well.
  struct NotedOptimizer {
    std::string name = {};
    std::vector<at::Tensor> parameters = {};
  };
  void check_optimizers();
  void check_windows(const Facts& facts);
  // Returns true if no prepared model exchanges its gradients now: all are in scopes of no_sync.
  bool are_held_back() const;

  Logger log_;
  int world_size_;
  bool has_model_ = false, has_loader_ = false, accumulates_ = false, said_loader_ = false, said_accumulate_ = false;
  bool said_scope_ = false, said_scale_ = false, said_no_sync_ = false;
  int64_t backwards_ = 0, calls_before_ = 0, batches_since_accumulate_ = 0;
  // Backwards in a row between which no prepared optimizer was called, and the calls before them.
  int64_t unstepped_ = 0, calls_at_last_ = 0;
  std::vector<std::weak_ptr<const parallel::Ddp>> exchanges_ = {};
  std::unordered_set<const c10::TensorImpl*> of_models_ = {};
  std::vector<NotedOptimizer> optimizers_ = {};
  bool trains_a_model_ = false, steps_models_ = false;
};

}  // namespace hasten
