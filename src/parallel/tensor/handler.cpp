// See handler.h.
#include "parallel/tensor/handler.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>

#include <string>
#include <utility>

#include "parallel/parameters/copied_part.h"
#include "parallel/tensor/rules.h"

namespace hasten::parallel::tensor {
namespace {

int& forward_scopes() {
  thread_local int depth = 0;
  return depth;
}

class Handler final : public CutAxis {
 public:
  using CutAxis::CutAxis;
  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override;

 private:
  bool copy_part(const c10::OperatorHandle& op, interception::Stack& stack) const;
};

bool Handler::copy_part(const c10::OperatorHandle& op, interception::Stack& stack) const {
  const std::string name = name_of(stack[stack.size() - op.schema().arguments().size()].toTensor());
  {
    const interception::PassScope pass;
    op.callBoxed(stack);
  }
  mark_copied_part(stack.back().toTensor(), name, "cut over " + options().name, {"tensor", part(), num_parts()});
  return true;
}

bool Handler::intercept(const c10::OperatorHandle& op, interception::Stack& stack) {
  // Backward works on parts.
  if (torch::autograd::get_current_node() != nullptr) return false;
  bool has_global = false, has_parameter = false;
  const auto visit = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (const auto* const global = GlobalTensor::of(tensor)) {
      has_global = has_global || &global->axis() == this;
    } else {
      if (placement(tensor) == nullptr) return;
      has_parameter = true;
      note_used(tensor);
    }
  };
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
    if (stack[i].isTensor()) {
      visit(stack[i].toTensor());
    } else if (stack[i].isTensorList()) {
      for (const at::Tensor& tensor : stack[i].toTensorVector()) visit(tensor);
    } else if (stack[i].isList()) {
      for (const c10::IValue& item : stack[i].toListRef()) {
        if (item.isTensor()) visit(item.toTensor());
      }
    }
  }
  if (!has_global) {
    if (!has_parameter || (running_axes() & bit()) != 0) return false;
    const bool computes = at::GradMode::is_enabled() || forward_scopes() > 0 || is_of_forwards(op.schema().name());
    if (!computes) return op.schema().name() == "aten::clone" && copy_part(op, stack);
  }
  count_operator();
  const uint64_t before = std::exchange(running_axes(), running_axes() | bit());
  struct Restore {
    uint64_t before;
    ~Restore() { running_axes() = before; }
  } const restore{before};
  apply_rule(*this, op, stack);
  return true;
}

}  // namespace

std::shared_ptr<CutAxis> make_axis(comm::Group group, AxisOptions options) {
  return std::make_shared<Handler>(std::move(group), std::move(options));
}

ForwardScope::ForwardScope() {
  ++forward_scopes();
}

ForwardScope::~ForwardScope() {
  --forward_scopes();
}

}  // namespace hasten::parallel::tensor
