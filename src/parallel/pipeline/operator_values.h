// The tensors among an operator's arguments or results, as they lie on the dispatcher's stack.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <utility>

namespace hasten::parallel::pipeline {

/// Calls `fn` with each tensor that is defined.
template <class Fn>
void visit_tensors_of(const c10::IValue& value, const Fn& fn) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) fn(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) {
      if (tensor.defined()) fn(tensor);
    }
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) {
      if (item.isTensor() && item.toTensor().defined()) fn(item.toTensor());
    }
  }
}

/// Puts fn(tensor) in the place of each tensor that is defined.
template <class Fn>
void replace_tensors_of(c10::IValue& value, const Fn& fn) {
  bool any = false;
  visit_tensors_of(value, [&](const at::Tensor&) { any = true; });
  if (!any) return;
  if (value.isTensor()) {
    value = fn(value.toTensor());
  } else if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(tensor.defined() ? fn(tensor) : tensor);
    value = std::move(list);
  } else {
    c10::List<std::optional<at::Tensor>> list;
    for (const c10::IValue& item : value.toListRef()) {
      const bool is_there = item.isTensor() && item.toTensor().defined();
      list.push_back(is_there ? std::optional(fn(item.toTensor())) : std::nullopt);
    }
    value = std::move(list);
  }
}

}  // namespace hasten::parallel::pipeline
