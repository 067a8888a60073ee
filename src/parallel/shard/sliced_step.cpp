// See sliced_step.h.
#include "parallel/shard/sliced_step.h"

#include <torch/types.h>

namespace hasten::parallel::shard {
namespace {

// A dense tensor's elements in the order of memory.
at::Tensor in_memory_order(const at::Tensor& tensor) {
  return tensor.as_strided({tensor.numel()}, {1});
}

bool lies_as(const at::Tensor& tensor, const at::Tensor& parameter) {
  if (tensor.layout() != at::kStrided || tensor.sizes() != parameter.sizes()) return false;
  return tensor.strides() == parameter.strides() || (tensor.is_contiguous() && parameter.is_contiguous());
}

}  // namespace

ShardInterval stepped_interval(const SplitParameter& split, StepKind kind) {
  if (kind == StepKind::kElementwise) return split.model->owned(split.item);
  const bool mine = split.whole_owner == split.model->owner();
  return {0, mine ? split.model->items()[split.item].numel : 0};
}

at::Tensor cut_state(const at::Tensor& tensor, int64_t whole_numel, ShardInterval interval) {
  if (!tensor.defined() || tensor.numel() != whole_numel) return tensor;
  const at::Tensor flat = in_memory_order(tensor);
  return interval.size() == whole_numel ? flat : flat.narrow(0, interval.begin, interval.size()).clone();
}

at::Tensor gradient_part(const SplitParameter& split, const at::Tensor& parameter, ShardInterval interval) {
  if (split.model->splits_gradients() && split.model->has_own_gradient(split.item)) {
    return split.model->gradient_slice(split.item, interval);
  }
  at::Tensor whole = parameter.grad().detach();
  if (!lies_as(whole, parameter)) {
    // No operator reads the parameter, which owners alone come to here.
    whole = at::empty_strided(parameter.sizes(), parameter.strides(), parameter.options().requires_grad(false))
                .copy_(whole);
  }
  if (!whole.is_cpu()) return in_memory_order(whole).narrow(0, interval.begin, interval.size());
  // Not as a view: kernels take mutable pointers of memory that they only read, and a watched gradient would be copied
  // whole.
  auto* begin = static_cast<char*>(const_cast<void*>(whole.const_data_ptr())) + interval.begin * whole.element_size();
  return torch::from_blob(
      begin, {interval.size()}, [keep = whole](void*) {}, whole.scalar_type());
}

SlicedStep::SlicedStep(torch::optim::Optimizer& optimizer, const SplitParameters& split, StepKind kind,
                       const std::unordered_set<const c10::TensorImpl*>* stepped, bool with_others)
    : optimizer_(optimizer), split_(split), kind_(kind), stepped_(stepped), with_others_(with_others) {
  const at::NoGradGuard no_grad;
  for (auto& group : optimizer.param_groups()) {
    groups_.push_back(group.params());
    replace(group.params());
  }
}

SlicedStep::~SlicedStep() {
  for (const auto& [parameter, slice] : replaced_) move_state(slice, parameter);
  for (size_t i = 0; i < groups_.size(); ++i) {
    optimizer_.param_groups()[i].params() = std::move(groups_[i]);
  }
}

void SlicedStep::replace(std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> stepped;
  for (const at::Tensor& parameter : parameters) {
    const auto found = split_.find(parameter.unsafeGetTensorImpl());
    if (found == split_.end()) {
      if (with_others_) stepped.push_back(parameter);
      continue;
    }
    if (stepped_ != nullptr && !stepped_->contains(found->first)) continue;
    // A tied weight may be listed twice, and is then stepped twice.
    if (const auto again = slices_.find(parameter.unsafeGetTensorImpl()); again != slices_.end()) {
      stepped.push_back(again->second);
      continue;
    }
    const at::Tensor slice = slice_of(parameter, found->second);
    if (!slice.defined()) {
      optimizer_.state().erase(parameter.unsafeGetTensorImpl());
      continue;
    }
    move_state(parameter, slice);
    replaced_.emplace_back(parameter, slice);
    slices_[parameter.unsafeGetTensorImpl()] = slice;
    stepped.push_back(slice);
  }
  parameters = std::move(stepped);
}

at::Tensor SlicedStep::slice_of(const at::Tensor& parameter, const SplitParameter& split) {
  const auto interval = stepped_interval(split, kind_);
  if (interval.size() == 0) return {};
  at::Tensor slice = split.model->value_slice(split.item, interval);
  if (kind_ == StepKind::kWhole) slice = slice.as_strided(parameter.sizes(), parameter.strides());
  if (!parameter.grad().defined()) return slice;
  const at::Tensor gradient = kind_ == StepKind::kWhole ? parameter.grad() : gradient_part(split, parameter, interval);
  // Where the CPU steps a device's parameters.
  slice.mutable_grad() = gradient.device() == slice.device() ? gradient : gradient.to(slice.device());
  return slice;
}

void SlicedStep::move_state(const at::Tensor& from, const at::Tensor& to) {
  auto& states = optimizer_.state();
  const auto found = states.find(from.unsafeGetTensorImpl());
  if (found == states.end()) return;
  auto state = std::move(found->second);
  states.erase(found);
  const auto split = split_.find(from.unsafeGetTensorImpl());
  if (kind_ == StepKind::kElementwise && split != split_.end()) {
    const auto interval = stepped_interval(split->second, kind_);
    visit_state(*state, [&](const char*, at::Tensor& tensor) {
      tensor = cut_state(tensor, from.numel(), interval);
      // State that was made before prepare, or moved by a new plan, is stepped where the slice is.
      if (tensor.defined() && tensor.device() != to.device()) tensor = tensor.to(to.device());
    });
  }
  states[to.unsafeGetTensorImpl()] = std::move(state);
}

}  // namespace hasten::parallel::shard
