// Replaces the tensors among an operator's arguments or results, as they lie on the dispatcher's stack.
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <optional>
#include <utility>

#include "hasten/interception/stack_tensors.h"

namespace hasten::parallel::pipeline {

/// Puts fn(tensor) in the place of each tensor that is defined.
template <class Fn>
void replace_tensors_of(c10::IValue& value, const Fn& fn) {
  bool any = false;
  interception::visit_tensors(value, [&](const at::Tensor&) { any = true; });
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
