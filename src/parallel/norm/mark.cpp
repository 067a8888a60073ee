// See mark.h.
#include "parallel/norm/mark.h"

#include <ATen/ops/_to_copy.h>
#include <ATen/ops/clone.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <utility>

namespace hasten::parallel {
namespace {

// key_set_ is protected, and there is no other way to add a key.
struct KeySetter : c10::TensorImpl {
  static void add(c10::TensorImpl& tensor) {
    constexpr auto member = &KeySetter::key_set_;
    tensor.*member = tensor.key_set().add(kMarkKey);
  }
};

at::Tensor marked_like(at::Tensor copy, const at::Tensor& original) {
  if (auto mark = mark_of(original)) set_mark(copy, std::move(mark));
  return copy;
}

at::Tensor to_copy(const at::Tensor& self, std::optional<at::ScalarType> dtype,
                   std::optional<at::Layout> layout, std::optional<at::Device> device,
                   std::optional<bool> pin_memory, bool non_blocking,
                   std::optional<at::MemoryFormat> memory_format) {
  const c10::impl::ExcludeDispatchKeyGuard below(kMarkKey);
  return marked_like(at::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, memory_format),
                     self);
}

at::Tensor clone(const at::Tensor& self, std::optional<at::MemoryFormat> memory_format) {
  const c10::impl::ExcludeDispatchKeyGuard below(kMarkKey);
  return marked_like(at::clone(self, memory_format), self);
}

}  // namespace

void set_mark(const at::Tensor& tensor, c10::intrusive_ptr<Mark> mark) {
  KeySetter::add(*tensor.unsafeGetTensorImpl());
  tensor.unsafeGetTensorImpl()->set_backend_meta(std::move(mark));
}

c10::intrusive_ptr<Mark> mark_of(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.key_set().has(kMarkKey)) return {};
  auto meta = tensor.unsafeGetTensorImpl()->get_backend_meta_intrusive_ptr();
  return c10::dynamic_intrusive_pointer_cast<Mark>(std::move(meta));
}

TORCH_LIBRARY_IMPL(_, TESTING_ONLY_GenericWrapper, library) {
  library.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, TESTING_ONLY_GenericWrapper, library) {
  library.impl("_to_copy", &to_copy);
  library.impl("clone", &clone);
}

}  // namespace hasten::parallel
