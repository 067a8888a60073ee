// Bridge: libtorch's distributed autograd over hasten's agent.
//
// libtorch has one container of contexts and one current agent a process, so the first agent of a process claims them.
// This header names nothing of libtorch's; engine_bridge.h does.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "rpc/wire.h"

namespace hasten::rpc {

class AgentCore;

class Bridge {
 public:
  /// Returns the bridge of this process for `core`, null if another agent has it, or had it with another rank.
  static std::unique_ptr<Bridge> claim(AgentCore& core);
  virtual ~Bridge() = default;
  virtual void start(const std::shared_ptr<AgentCore>& core) = 0;
  virtual void stop() noexcept = 0;

  /// Returns the current context's id in this thread, -1 outside one.
  virtual int64_t current() const = 0;
  /// Caller: records the call and fills the head. Returns the head's context.
  virtual void record_call(Head& head, std::vector<at::Tensor>& tensors, int to) = 0;
  /// Callee: arrived tensors need gradients from now on.
  virtual void record_arrival(const Head& head, std::vector<at::Tensor>& tensors,
                              const std::vector<bool>& requires_grad, int from) = 0;
  /// Callee: the reply's tensors.
  virtual void record_reply(Head& head, std::vector<at::Tensor>& tensors, int to) = 0;
  /// Caller: the reply has come.
  virtual void record_answer(const Head& head, std::vector<at::Tensor>& tensors, const std::vector<bool>& requires_grad,
                             int from) = 0;
  /// Caller: the call failed, so its outputs will never get a gradient.
  virtual void record_failure(const Head& head, int to) = 0;

  virtual void on_engine(int from, Decoded message) = 0;
  virtual void on_settle(int from, const Head& head) = 0;
  /// Fails the passes in which the worker takes part, and releases contexts that no other worker will.
  virtual void lost(int rank) = 0;
  /// A worker takes part in a context of this one: it is to be notified of the release. Returns false if the context
  /// has been released.
  virtual bool add_member(int64_t context, int worker) = 0;

  /// How many contexts have data here.
  virtual int64_t num_contexts() const = 0;
  virtual int64_t new_context() = 0;
  virtual void release(int64_t context) = 0;
  virtual void backward(int64_t context, const std::vector<at::Tensor>& roots, bool retain_graph) = 0;
  virtual std::vector<std::pair<at::Tensor, at::Tensor>> gradients(int64_t context) const = 0;
  virtual at::Tensor gradient(int64_t context, const at::Tensor& parameter) const = 0;
  virtual bool set_gradient(int64_t context, const at::Tensor& parameter, const at::Tensor& gradient) const = 0;
};

}  // namespace hasten::rpc
