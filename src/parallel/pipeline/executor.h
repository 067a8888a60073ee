// Executor: one step of a pipeline, the forwards and backwards of its microbatches in an order.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hasten/plan/orders.h"
#include "parallel/pipeline/forward_pass.h"
#include "parallel/pipeline/held_forward.h"
#include "parallel/pipeline/order_choice.h"
#include "parallel/pipeline/stage_axis.h"
#include "parallel/pipeline/weight_queue.h"

namespace hasten::parallel::pipeline {

struct StepInput {
  /// The forward of each microbatch, which returns its loss or output.
  std::vector<std::function<at::Tensor()>> forwards = {};
  /// What each microbatch's loss counts; with backwards.
  std::vector<double> weights = {};
  /// The record of each microbatch's shape.
  std::vector<Program*> programs = {};
  const plan::PipelineOrder* order = nullptr;
  /// Where seconds of actions go; null: nothing is measured.
  ActionTimes* times = nullptr;
};

class Executor {
 public:
  Executor(StageAxis& axis, const StepInput& input);
  ~Executor();

  /// Returns what the forwards returned: values on a rank that has their stage, undefined elsewhere.
  /// Collective: yes. Blocks: yes. Throws: the exceptions of forwards; UsageError; CommError.
  std::vector<at::Tensor> run();

 private:
  struct Microbatch;

  void carry_out(const plan::Action& action);
  void forward(const plan::Action& action);
  void backward(const plan::Action& action);
  void send_gradients(Microbatch& one, int stage);
  at::Tensor gradient_of(Microbatch& one, const Passed& sent);

  StageAxis& axis_;
  const StepInput& input_;
  bool is_held_;
  WeightQueue weights_ = {};
  std::vector<std::unique_ptr<Microbatch>> microbatches_;
};

/// Makes the record of a forward: it is run once, without an order and without backward.
/// Collective: yes. Blocks: yes. Throws: as Executor::run; the words of a rank's exception on all ranks.
void record_program(StageAxis& axis, Program& program, bool is_held, const std::function<at::Tensor()>& forward);

}  // namespace hasten::parallel::pipeline
