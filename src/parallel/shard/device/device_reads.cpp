// See device_reads.h.
#include "parallel/shard/device/device_reads.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <string_view>

#include "hasten/core/error.h"
#include "hasten/interception/stack_tensors.h"
#include "hasten/parallel/shard/in_parts.h"

namespace hasten::parallel::shard {
namespace {

using torch::autograd::variable_list;

// The low form in the parameter's place, as autograd sees it: a cast of the parameter.
struct UseLowForm : torch::autograd::Function<UseLowForm> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& parameter,
                            const at::Tensor& low) {
    context->saved_data["dtype"] = parameter.scalar_type();
    return low.detach();
  }
  static variable_list backward(torch::autograd::AutogradContext* context, const variable_list& gradients) {
    return {gradients[0].to(context->saved_data["dtype"].toScalarType()), at::Tensor()};
  }
};

// Autocast's list of the lower precision, as far as weights are concerned, and the view that linear makes.
bool takes_low_form(const std::string& name) {
  constexpr std::array<std::string_view, 16> kNames = {"aten::linear",
                                                       "aten::conv1d",
                                                       "aten::conv2d",
                                                       "aten::conv3d",
                                                       "aten::matmul",
                                                       "aten::conv_transpose1d",
                                                       "aten::conv_transpose2d",
                                                       "aten::conv_transpose3d",
                                                       "aten::addmm",
                                                       "aten::mm",
                                                       "aten::bmm",
                                                       "aten::baddbmm",
                                                       "aten::prelu",
                                                       "aten::t",
                                                       "aten::addmv",
                                                       "aten::mv"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

}  // namespace

bool is_pure_view(const c10::OperatorHandle& op) {
  const auto& schema = op.schema();
  if (schema.name() == "aten::_has_compatible_shallow_copy_type") return true;  // of set_data
  if (schema.returns().empty() || op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    // A composite of one view.
    return schema.name() == "aten::t" || schema.name() == "aten::numpy_T";
  }
  const auto* result = schema.returns().front().alias_info();
  if (result == nullptr || result->isWrite()) return false;
  return std::none_of(schema.arguments().begin(), schema.arguments().end(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

void DeviceReads::add(const at::Tensor& parameter, Parameter what) {
  const size_t index = parameters_.size();
  places_[parameter.storage().unsafeGetStorageImpl()] = {index, false};
  if (what.low.defined()) places_[what.low.storage().unsafeGetStorageImpl()] = {index, true};
  parameters_.push_back(std::move(what));
}

void DeviceReads::forget() {
  units_ = nullptr;
  // Low forms hold this object.
  for (auto& parameter : parameters_) parameter.low = at::Tensor();
  std::erase_if(places_, [](const auto& place) { return place.second.low; });
}

const DeviceReads::Place* DeviceReads::find(const at::Tensor& tensor) const {
  if (!tensor.has_storage()) return nullptr;
  const auto found = places_.find(tensor.storage().unsafeGetStorageImpl());
  return found == places_.end() ? nullptr : &found->second;
}

bool DeviceReads::holds(const at::Tensor& tensor) const {
  return find(tensor) != nullptr;
}

bool DeviceReads::replace(c10::IValue& argument) const {
  if (!argument.isTensor() || !argument.toTensor().defined()) return false;
  const at::Tensor tensor = argument.toTensor();
  const Place* place = find(tensor);
  if (place == nullptr || place->low) return false;
  const auto& parameter = parameters_[place->parameter];
  if (!parameter.low.defined() || tensor.scalar_type() != at::kFloat) return false;
  at::Tensor low = parameter.low;
  const auto own = parameter.tensor.lock();
  if (!own || own.get() != tensor.unsafeGetTensorImpl()) {
    const int64_t begin = own ? own->storage_offset() : 0;
    low = low.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset() - begin);
  }
  const bool differentiates = at::GradMode::is_enabled() && tensor.requires_grad();
  argument = differentiates ? UseLowForm::apply(tensor, low) : low;
  return true;
}

void DeviceReads::read(const at::Tensor& tensor, std::vector<DeviceUnits::Form>& forms) const {
  const Place* place = find(tensor);
  if (place == nullptr || tensor.numel() == 0) return;
  const auto& parameter = parameters_[place->parameter];
  if (units_ == nullptr) {
    throw UsageError(Origin{"shard"}, "the values of '", parameter.name,
                     "' were kept in parts by several ranks, and what shared them is gone. Take state_dict before the "
                     "last handle of the prepared model ends.");
  }
  const auto form = place->low ? DeviceUnits::low(parameter.unit) : DeviceUnits::exact(parameter.unit);
  if (std::find(forms.begin(), forms.end(), form) == forms.end()) forms.push_back(form);
}

void DeviceReads::bring(const at::Tensor& tensor, bool writes) {
  std::vector<DeviceUnits::Form> forms;
  read(tensor, forms);
  if (forms.empty()) return;
  units_->read(forms, false);
  if (writes) units_->note_write(forms.front());
}

bool DeviceReads::intercept(const c10::OperatorHandle& op, interception::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  const size_t begin = stack.size() - arguments.size();
  if (units_ != nullptr && takes_low_form(op.schema().name()) && !interception::is_below_autograd()) {
    const auto type = units_->device().type();
    if (at::autocast::is_autocast_enabled(type)) {
      for (size_t i = begin; i < stack.size(); ++i) {
        const auto* place = stack[i].isTensor() && stack[i].toTensor().defined() ? find(stack[i].toTensor()) : nullptr;
        if (place == nullptr || !parameters_[place->parameter].low.defined()) continue;
        if (parameters_[place->parameter].low.scalar_type() == at::autocast::get_autocast_dtype(type))
          replace(stack[i]);
      }
    }
  }
  if (is_pure_view(op)) return false;
  std::vector<DeviceUnits::Form> forms;
  for (size_t i = begin; i < stack.size(); ++i)
    interception::visit_tensors(stack[i], [&](const at::Tensor& tensor) { read(tensor, forms); });
  if (forms.empty()) return false;
  const bool in_backward = torch::autograd::get_current_graph_task_id() != -1;
  units_->read(forms, in_backward ? ahead_.in_backward : ahead_.in_forward);
  for (size_t i = begin; i < stack.size(); ++i) {
    const auto* alias = arguments[i - begin].alias_info();
    if (alias == nullptr || !alias->isWrite()) continue;
    interception::visit_tensors(stack[i], [&](const at::Tensor& tensor) {
      const Place* place = find(tensor);
      if (place != nullptr && !place->low) units_->note_write(DeviceUnits::exact(parameters_[place->parameter].unit));
    });
  }
  return false;
}

}  // namespace hasten::parallel::shard

namespace hasten::parallel {

bool is_in_parts(const at::Tensor& tensor) {
  return interception::find_interceptor<shard::DeviceReads>(tensor) != nullptr;
}

}  // namespace hasten::parallel
