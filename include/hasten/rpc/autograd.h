// Distributed autograd: one backward pass through several workers.
//
// libtorch's distributed engine runs the passes; the messages travel over hasten's agent. An output of a call that the
// loss does not use is settled with zeros, so a pass always ends (docs/rpc.md, "Autograd").
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/comm/group/group.h"
#include "hasten/rpc/detail/core.h"
#include "hasten/rpc/rref.h"
#include "hasten/rpc/values.h"

namespace hasten::rpc {

/// A backward pass in the making, on all workers that took part in it. May be an argument of calls.
class AutogradContext {
 public:
  AutogradContext(std::shared_ptr<detail::Core> core, int64_t id) : core_(std::move(core)), id_(id) {}

  int64_t id() const noexcept { return id_; }
  /// Computes the gradients of the roots' sum, which are scalars, on all workers that took part. Leaves `.grad` as it
  /// is. Blocks: until all workers have ended. Throws: UsageError for roots that need no gradient, and
  /// in a thread that has not entered the context; CommError if a worker was lost.
  void backward(const std::vector<at::Tensor>& roots, const BackwardOptions& options = {}) const;
  /// Returns this worker's parameters and their gradients.
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients() const;
  /// Returns this worker's gradient of one parameter; undefined if it has none.
  at::Tensor gradient(const at::Tensor& parameter) const;
  /// Replaces this worker's gradient of a parameter that has one. Throws: UsageError otherwise.
  void set_gradient(const at::Tensor& parameter, const at::Tensor& gradient) const;

  /// Makes the context the current one of this thread while the scope exists, so that calls in it are recorded.
  class Scope {
   public:
    explicit Scope(int64_t id);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    int64_t before_;
  };
  [[nodiscard]] Scope enter() const { return Scope(id_); }
  const std::shared_ptr<detail::Core>& core() const noexcept { return core_; }

 private:
  std::shared_ptr<detail::Core> core_;
  int64_t id_;
};

/// Data parallelism inside a context: this rank's gradients of `parameters` become their mean over the group's ranks. A
/// rank without a gradient of a parameter counts as zeros. Call it after backward() and before the optimizer's step.
/// Collective: yes. Blocks: yes. Throws: CommError.
void average_gradients(const AutogradContext& context, const std::vector<at::Tensor>& parameters,
                       const comm::Group& group);

template <>
struct Codec<AutogradContext> {
  static void write(Writer& to, const AutogradContext& value) { to.number(value.id()); }
  static AutogradContext read(Reader& from) {
    const auto id = from.number<int64_t>();
    return AutogradContext(from.core(), id);
  }
  static std::string describe() { return "autograd"; }
};

}  // namespace hasten::rpc
