// ForwardPass: one forward of a microbatch on this rank, operator by operator.
//
// The program's code runs whole on every rank. An operator belongs to the highest stage among its inputs. The rank of
// that stage computes; the others make a value of the result's sizes. Values go to later stages by the record
// (program.h).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "parallel/pipeline/program.h"
#include "parallel/pipeline/stage_axis.h"
#include "parallel/pipeline/weight_queue.h"

namespace hasten::parallel::pipeline {

/// A value that went to or came from another stage, for the way back of its gradient.
struct Passed {
  /// Sent: the value in the graph. Received: the leaf that the later stage's graph begins with.
  at::Tensor tensor;
  Transfer transfer;
};

class ForwardPass {
 public:
  struct Options {
    int microbatch = 0, num_microbatches = 1;
    /// The stages tell each other what the record will hold, operator by operator.
    bool records = false;
    /// Ranks have several stages, so that their forwards stop between them.
    bool is_held = false;
    /// Gradients of weights wait for a call of their own (weight_queue.h).
    bool defers_weights = false;
    /// A program's own forward, outside of a step.
    bool is_open = false;
  };

  ForwardPass(StageAxis& axis, Program& program, const Options& options)
      : axis_(axis), program_(program), options_(options) {}

  /// While it exists, operators of this thread go through a pass.
  class Scope;
  /// Returns the pass of this thread; null for none.
  static ForwardPass* current() noexcept;
  /// Returns true while a pass carries an operator out on this rank's values.
  static bool is_inside() noexcept;

  StageAxis& axis() const noexcept { return axis_; }
  bool is_open() const noexcept { return options_.is_open; }
  /// Replaces the arguments at the end of the stack by the results. `stage`: the highest of the arguments.
  void carry_out(const c10::OperatorHandle& op, interception::Stack& stack, int stage);
  /// The program has ended: sends what was not sent yet.
  void end();

  /// Returns true if all ranks have been told of the exception that ended the forward.
  bool failure_was_told() const noexcept { return failure_was_told_; }

  /// The stage up to which this rank may go. Behind it `wait_for_turn` is called until it may.
  void set_running(int stage) noexcept { running_ = stage; }
  std::function<void()> wait_for_turn = {};

  int tag(const Transfer& transfer, bool is_gradient) const noexcept {
    return 2 * (transfer.index * options_.num_microbatches + options_.microbatch) + (is_gradient ? 1 : 0);
  }
  /// Values that a stage of this rank has sent and received, in the order of the program.
  std::vector<Passed>& sent(int stage) { return sent_[stage]; }
  std::vector<Passed>& received(int stage) { return received_[stage]; }
  /// Gradients of values between two stages of this rank, by transfer.
  std::map<int, at::Tensor>& own_gradients() noexcept { return own_gradients_; }

 private:
  struct Call;

  void take_turn(int stage);
  void bring(StagedTensor& value, int stage);
  void hold(const at::Tensor& parameter, int stage);
  at::Tensor remake(const StagedTensor& value, int stage);
  std::shared_ptr<const Recipe> recipe_of(const Call& call) const;
  std::optional<LinearParameters> linear_of(const Call& call) const;
  void put_locals(interception::Stack& stack, size_t begin, int stage) const;
  const Transfer& transfer_of(const StagedTensor& value, int stage);
  void require_in_order(const StagedTensor& value, int stage) const;
  void send(const at::Tensor& local, const Transfer& transfer);
  at::Tensor receive(const ValueFacts& facts, const Transfer& transfer);
  at::Tensor pass_on_here(const StagedTensor& value, const Transfer& transfer);
  void send_what_was_made();
  void require_recorded(const Call& call) const;
  void compute(Call& call);
  void run_locally(Call& call, const std::optional<LinearParameters>& linear);
  void stand_in(Call& call);
  void tell_numbers(const Call& call);
  void give_results(Call& call, const CallRecord& record, const std::vector<at::Tensor>& locals);
  c10::IValue told_number(int from) const;
  int told_tag() const noexcept { return kToldTag + (options_.records ? 0 : 1 + options_.microbatch); }

  StageAxis& axis_;
  Program& program_;
  Options options_;
  size_t next_call_ = 0;
  /// The highest stage whose operators the program has reached.
  int front_ = -1;
  int running_ = -1;
  bool failure_was_told_ = false;
  /// Values that transfers name and that were not sent yet.
  std::map<ValueId, std::pair<int, at::Tensor>> to_send_ = {};
  std::map<int, std::vector<Passed>> sent_ = {}, received_ = {};
  std::map<int, at::Tensor> own_gradients_ = {};
};

class ForwardPass::Scope {
 public:
  explicit Scope(ForwardPass& pass);
  ~Scope();
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;

 private:
  ForwardPass* before_;
};

}  // namespace hasten::parallel::pipeline
