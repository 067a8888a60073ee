// ContextGradients: the gradients of a distributed-autograd context (rpc/autograd.h) during a step of data parallelism.
//
// In such a pass libtorch's engine accumulates into the context and leaves .grad() alone. The step works on .grad(), so
// it borrows .grad(). The program's gradients are set aside, the context's take their places, and both go back at the
// end.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <vector>

namespace hasten::parallel {

class ContextGradients {
 public:
  ContextGradients();
  ~ContextGradients();
  ContextGradients(const ContextGradients&) = delete;
  ContextGradients& operator=(const ContextGradients&) = delete;

  /// Borrows .grad() of `parameters` if this thread runs a context's backward pass; ends an earlier loan.
  void open(const std::vector<at::Tensor>& parameters);
  bool is_open() const noexcept { return !parameters_.empty(); }
  /// Fetches into .grad() the context's gradient of a parameter. Returns false if the context has none yet.
  bool fetch(const at::Tensor& parameter) const;
  /// Writes copies of .grad() into the context and gives .grad() back.
  void close();
  /// Gives .grad() back and leaves the context as it is.
  void restore() noexcept;

 private:
  struct Context;
  std::unique_ptr<Context> context_;
  std::vector<at::Tensor> parameters_, before_;
};

}  // namespace hasten::parallel
