// All other kernels: the CPU's, run at once on aliases of the device's bytes, after what the thread's stream waits for.
//
// Arguments on another device are refused, as CUDA's kernels refuse them. A result is an argument itself, a view of
// one, or a copy on the device.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/EmptyTensor.h>
#include <ATen/Functions.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "support/pretend/aliases.h"
#include "support/pretend/generator.h"
#include "support/pretend/streams.h"

namespace hasten::testing::pretend {
namespace {

template <class Change>
c10::IValue changed(const c10::IValue& value, const Change& change) {
  if (value.isTensor()) return change(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& tensor : value.toTensorVector()) list.push_back(change(tensor));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor> tensor : value.toOptionalTensorList()) {
      list.push_back(tensor ? std::optional(change(*tensor)) : std::nullopt);
    }
    return list;
  }
  return value;
}

// One call: the device that it is on, and each argument beside its alias.
class Call {
 public:
  Call(const std::string& name, torch::jit::Stack& stack, size_t begin)
      // Indices may be the CPU's.
      : is_indexing_(name == "aten::index" || name == "aten::index_put_" || name == "aten::_index_put_impl_") {
    for (size_t i = begin; i < stack.size(); ++i) {
      if (stack[i].isDevice() && !device_) device_ = indexed(stack[i].toDevice()).index();
      changed(stack[i], [&](const at::Tensor& tensor) {
        if (is_here(tensor)) device_ = device_.value_or(tensor.device().index());
        return tensor;
      });
    }
  }

  c10::DeviceIndex device() const { return device_.value_or(current_device()); }

  at::Tensor in(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    const bool may_be_elsewhere = tensor.is_cpu() && (tensor.dim() == 0 || is_indexing_);
    const bool is_there = is_here(tensor) && tensor.device().index() == device();
    TORCH_CHECK(is_there || may_be_elsewhere || tensor.is_meta() || !device_,
                "Expected all tensors to be on the same device, but found at least two devices, ",
                c10::Device(kType, device()), " and ", tensor.device(), '!');
    if (!is_there) return tensor;
    for (const auto& [own, alias] : arguments_) {
      if (own.is_same(tensor)) return alias;
    }
    arguments_.emplace_back(tensor, alias_of(tensor));
    return arguments_.back().second;
  }

  at::Tensor out(const at::Tensor& result) const {
    if (!result.defined() || !result.is_cpu()) return result;
    for (const auto& [own, alias] : arguments_) {
      if (result.is_same(alias)) return own;
    }
    for (const auto& [own, alias] : arguments_) {
      const bool is_view =
          result.has_storage() && alias.storage().nbytes() > 0 && result.storage().data() == alias.storage().data();
      if (is_view) return view_of(own, result);
    }
    const c10::Device where(kType, device());
    const at::Tensor there = at::empty_strided(result.sizes(), result.strides(), result.options().device(where));
    alias_of(there).copy_(result);
    return there;
  }

  // What an operator has resized or laid out anew (out=, t_) is so on the device, too.
  void settle() const {
    for (const auto& [own, alias] : arguments_) {
      if (alias.storage().data() != own.storage().data()) {
        resize_here(own, alias.sizes());
        alias_of(own).copy_(alias);
      } else if (alias.sizes() != own.sizes() || alias.strides() != own.strides()) {
        own.unsafeGetTensorImpl()->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
      }
    }
  }

 private:
  static at::Tensor view_of(const at::Tensor& own, const at::Tensor& result) {
    auto view = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(own.storage()), own.key_set(), result.dtype());
    view.unsafeGetTensorImpl()->set_sizes_and_strides(result.sizes(), result.strides(), result.storage_offset());
    return view;
  }

  bool is_indexing_;
  std::optional<c10::DeviceIndex> device_;
  std::vector<std::pair<at::Tensor, at::Tensor>> arguments_;
};

// Random kernels that take no generator draw from the CPU's default one, which gets the device's state meanwhile.
class Randomness {
 public:
  Randomness(const c10::OperatorHandle& op, c10::DeviceIndex device) {
    if (!op.hasTag(at::Tag::nondeterministic_seeded)) return;
    lock_ = std::unique_lock(mutex());
    own_ = numbers_of(default_generator(device));
    before_ = host_.get_state();
    host_.set_state(own_.get_state());
  }
  ~Randomness() {
    if (!own_.defined()) return;
    own_.set_state(host_.get_state());
    host_.set_state(before_);
  }
  Randomness(const Randomness&) = delete;
  Randomness& operator=(const Randomness&) = delete;

 private:
  static std::recursive_mutex& mutex() {
    static auto* const one = new std::recursive_mutex;
    return *one;
  }
  std::unique_lock<std::recursive_mutex> lock_;
  at::Generator host_ = at::detail::getDefaultCPUGenerator(), own_;
  at::Tensor before_;
};

// Puts in the CPU's generator behind the call's, or behind the device's. Returns whether the call takes one.
bool take_generator(const c10::FunctionSchema& schema, torch::jit::Stack& stack, size_t begin,
                    c10::DeviceIndex device) {
  for (size_t i = begin; i < stack.size(); ++i) {
    if (schema.arguments()[i - begin].name() != "generator") continue;
    stack[i] = numbers_of(stack[i].isGenerator() ? stack[i].toGenerator() : default_generator(device));
    return true;
  }
  return false;
}

// A view starts no kernel.
bool is_view(const c10::FunctionSchema& schema) {
  if (schema.returns().empty()) return false;
  const auto* alias = schema.returns()[0].alias_info();
  return alias != nullptr && !alias->isWrite();
}

void on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& schema = op.schema();
  const size_t begin = stack->size() - schema.arguments().size();
  Call call(schema.name(), *stack, begin);
  for (size_t i = begin; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    const auto* alias = schema.arguments()[i - begin].alias_info();
    const bool is_written = alias != nullptr && alias->isWrite();
    if (value.isDevice()) value = c10::Device(at::kCPU);
    value = changed(value, [&](const at::Tensor& tensor) {
      if (is_written) note_write(tensor);
      return call.in(tensor);
    });
  }
  const bool takes_generator = take_generator(schema, *stack, begin, call.device());
  if (!is_view(schema)) begin_kernel(call.device());
  {
    const at::AutoDispatchBelowADInplaceOrView below;
    std::optional<Randomness> random;
    if (!takes_generator) random.emplace(op, call.device());
    op.callBoxed(stack);
    call.settle();
  }
  for (size_t i = stack->size() - schema.returns().size(); i < stack->size(); ++i) {
    (*stack)[i] = changed((*stack)[i], [&](const at::Tensor& tensor) { return call.out(tensor); });
  }
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

// A device has one kernel for a list of tensors. Without these libtorch would take its loop over the tensors.
TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  for (const char* name : {"_foreach_norm.Scalar", "_foreach_mul_.Scalar", "_foreach_mul_.Tensor", "_foreach_copy_",
                           "_foreach_add_.List", "_foreach_zero_"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
  }
  // libtorch would take the one of a device's library.
  library.impl("convolution_backward", torch::CppFunction::makeFromBoxedFunction<&on_cpu>());
}

}  // namespace hasten::testing::pretend
