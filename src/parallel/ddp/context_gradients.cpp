// See context_gradients.h.
#include "parallel/ddp/context_gradients.h"

#include <torch/csrc/distributed/autograd/context/context.h>
#include <torch/types.h>

#include <utility>

namespace hasten::parallel {

namespace distributed = torch::distributed::autograd;

struct ContextGradients::Context {
  distributed::ContextPtr pass;
};

ContextGradients::ContextGradients() : context_(std::make_unique<Context>()) {}
ContextGradients::~ContextGradients() {
  restore();
}

void ContextGradients::open(const std::vector<at::Tensor>& parameters) {
  restore();
  auto pass = distributed::ThreadLocalDistAutogradContext::getContextPtr();
  if (!pass) return;
  const auto gradients = pass->getGradients();
  for (const at::Tensor& parameter : parameters) {
    const auto found = gradients.find(parameter);
    before_.push_back(
        std::exchange(parameter.mutable_grad(), found == gradients.end() ? at::Tensor() : found->value()));
    parameters_.push_back(parameter);
  }
  context_->pass = std::move(pass);
}

bool ContextGradients::fetch(const at::Tensor& parameter) const {
  const auto gradients = context_->pass->getGradients();
  const auto found = gradients.find(parameter);
  if (found == gradients.end()) return false;
  parameter.mutable_grad() = found->value();
  return true;
}

// The dictionary is the context's own: copies of it share its contents. No other thread of the pass accumulates any
// more.
void ContextGradients::close() {
  if (!is_open()) return;
  const auto gradients = context_->pass->getGradients();
  const at::NoGradGuard no_grad;
  for (const at::Tensor& parameter : parameters_) {
    const at::Tensor& gradient = parameter.grad();
    if (gradient.defined()) {
      gradients.insert_or_assign(parameter, gradient.clone());
    } else {
      static_cast<void>(gradients.erase(parameter));
    }
  }
  restore();
}

void ContextGradients::restore() noexcept {
  for (size_t i = 0; i < parameters_.size(); ++i) parameters_[i].mutable_grad() = std::move(before_[i]);
  parameters_.clear();
  before_.clear();
  context_->pass.reset();
}

}  // namespace hasten::parallel
