// The interceptor of staged values and parameters: which operators go through a pass. See stage_axis.h.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/function.h>

#include <algorithm>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/interception/stack_tensors.h"
#include "parallel/parameters/copied_part.h"
#include "parallel/pipeline/forward_pass.h"

namespace hasten::parallel::pipeline {
namespace {

struct Arguments {
  bool has_value = false, has_parameter = false, has_foreign = false;
  int stage = -1;
};

// A transposed parameter alone is no forward.
bool computes_forward(std::string_view name) {
  return name != "aten::t" && is_of_forwards(name);
}

}  // namespace

bool StageAxis::intercept(const c10::OperatorHandle& op, interception::Stack& stack) {
  // Backward works on this rank's values.
  if (ForwardPass::is_inside() || torch::autograd::get_current_node() != nullptr) return false;
  Arguments found;
  const auto visit = [&](const at::Tensor& tensor) {
    if (const auto* const value = StagedTensor::of(tensor)) {
      found.has_foreign = found.has_foreign || &value->axis() != this;
      found.has_value = true;
      found.stage = std::max(found.stage, value->stage());
    } else if (const auto* const record = find(tensor)) {
      found.has_parameter = true;
      found.stage = std::max(found.stage, record->first_stage());
    }
  };
  for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i)
    interception::visit_tensors(stack[i], visit);
  if (!found.has_value && !found.has_parameter) return false;
  if (found.has_foreign) {
    throw UsageError(origin(), "'", op.schema().name(),
                     "' takes values of two pipelines. Put their models into one module, and make one pipeline of it.");
  }
  auto* const pass = ForwardPass::current();
  if (pass != nullptr && &pass->axis() == this) {
    pass->carry_out(op, stack, found.stage);
    return true;
  }
  if (found.has_value || computes_forward(op.schema().name())) {
    throw UsageError(origin(), "'", op.schema().name(), "' on ", found.has_value ? "a value" : "a parameter",
                     " of stage ", found.stage,
                     " outside of a pipeline's forward. Compute the loss in the function that forward_backward is "
                     "given, and outputs in that of forward. Models on stages do not generate tokens "
                     "(models::generate); those that are cut over tp do.");
  }
  if (op.schema().name() != "aten::clone") return false;
  const auto* const copied = find(stack[stack.size() - op.schema().arguments().size()].toTensor());
  {
    const interception::PassScope pass;
    op.callBoxed(stack);
  }
  mark_copied_part(stack.back().toTensor(), copied->name, text("on stage ", found.stage), origin());
  return true;
}

}  // namespace hasten::parallel::pipeline
