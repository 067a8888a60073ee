// See op_policies.h.
#include "hasten/precision/op_policies.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/util/Exception.h>
#include <torch/library.h>

#include <map>
#include <set>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/core/sentence.h"

namespace hasten::precision {
namespace {

// Calls `change` with every tensor among the operator's arguments, in lists too.
template <class Change>
void for_tensors(const c10::OperatorHandle& op, torch::jit::Stack& stack, const Change& change) {
  const size_t count = op.schema().arguments().size();
  for (size_t i = stack.size() - count; i < stack.size(); ++i) {
    auto& value = stack[i];
    if (value.isTensor()) {
      if (value.toTensor().defined()) value = change(value.toTensor());
    } else if (value.isTensorList()) {
      auto list = value.toTensorVector();
      for (auto& tensor : list) tensor = change(tensor);
      value = std::move(list);
    }
  }
}

bool is_eligible(const at::Tensor& tensor, c10::DeviceType device) {
  return tensor.is_floating_point() && tensor.device().type() == device && tensor.scalar_type() != at::kDouble;
}

template <c10::DeviceType kDevice, CastPolicy kPolicy>
void cast_and_call(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(at::autocast::get_autocast_dispatch_key_from_device_type(kDevice));
  at::ScalarType dtype = kPolicy == CastPolicy::kLow ? at::autocast::get_autocast_dtype(kDevice) : at::kFloat;
  if (kPolicy == CastPolicy::kWidest) {
    bool has_float = false;
    for_tensors(op, *stack, [&](const at::Tensor& tensor) {
      has_float = has_float || (is_eligible(tensor, kDevice) && tensor.scalar_type() == at::kFloat);
      return tensor;
    });
    if (!has_float) dtype = at::autocast::get_autocast_dtype(kDevice);
  }
  for_tensors(op, *stack, [&](const at::Tensor& tensor) {
    if (!is_eligible(tensor, kDevice)) return tensor;
    if (kPolicy != CastPolicy::kRefuse) return at::autocast::cached_cast(dtype, tensor, kDevice);
    if (tensor.scalar_type() == at::kFloat) return tensor;
    throw UsageError(Origin{"precision"}, op.schema().name(), " of a ", tensor.scalar_type(),
                     " tensor is not safe in half precision. Call it outside of autocast, on float32 values.");
  });
  op.callBoxed(stack);
}

template <c10::DeviceType kDevice>
torch::CppFunction kernel_of(CastPolicy policy) {
  switch (policy) {
    case CastPolicy::kLow:
      return torch::CppFunction::makeFromBoxedFunction<&cast_and_call<kDevice, CastPolicy::kLow>>();
    case CastPolicy::kFloat32:
      return torch::CppFunction::makeFromBoxedFunction<&cast_and_call<kDevice, CastPolicy::kFloat32>>();
    case CastPolicy::kWidest:
      return torch::CppFunction::makeFromBoxedFunction<&cast_and_call<kDevice, CastPolicy::kWidest>>();
    case CastPolicy::kRefuse:
      break;
  }
  return torch::CppFunction::makeFromBoxedFunction<&cast_and_call<kDevice, CastPolicy::kRefuse>>();
}

bool returns_new_tensors(const c10::FunctionSchema& schema) {
  return !schema.is_mutable() || schema.name().ends_with("_");
}

// The overloads of aten::NAME that can be cast around.
std::vector<c10::OperatorHandle> overloads_of(const std::string& name) {
  std::vector<c10::OperatorHandle> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& known : dispatcher.getAllOpNames()) {
    if (known.name != name) continue;
    const auto op = dispatcher.findSchema(known);
    if (op && returns_new_tensors(op->schema())) found.push_back(*op);
  }
  return found;
}

// libtorch warns of each kernel that is replaced, which is what is asked for here.
class SilentWarnings final : public c10::WarningHandler {
 public:
  void process(const c10::Warning& /*warning*/) override {}
};

[[noreturn]] void refuse_unknown(const std::string& name) {
  std::set<std::string> names;
  for (const auto& known : c10::Dispatcher::singleton().getAllOpNames()) {
    if (known.name.starts_with("aten::")) names.insert(known.name);
  }
  throw UsageError(Origin{"precision"}, "unknown operator '", name, "'; expected one of libtorch's, such as aten::gelu",
                   guess_end(name, {names.begin(), names.end()}));
}

}  // namespace

struct OpPolicies::Impl {
  c10::DeviceType device;
  // Each operator has a library. Setting it anew takes the old kernel away first.
  std::map<std::string, std::unique_ptr<torch::Library>> libraries = {};
};

OpPolicies::OpPolicies(c10::DeviceType device) : impl_(std::make_unique<Impl>(Impl{device})) {
  if (device == c10::DeviceType::CPU || device == c10::DeviceType::CUDA) return;
  throw UsageError(Origin{"precision"}, "operator policies for devices of type ", c10::DeviceTypeName(device, true),
                   "; expected a CPU or CUDA.");
}
OpPolicies::OpPolicies(OpPolicies&&) noexcept = default;
OpPolicies& OpPolicies::operator=(OpPolicies&&) noexcept = default;
OpPolicies::~OpPolicies() = default;

void OpPolicies::set(const std::string& op, CastPolicy policy) {
  const std::string name = op.find("::") == std::string::npos ? "aten::" + op : op;
  const auto overloads = overloads_of(name);
  if (overloads.empty()) refuse_unknown(name);
  SilentWarnings silent;
  const c10::WarningUtils::WarningHandlerGuard guard(&silent);
  const bool cpu = impl_->device == c10::DeviceType::CPU;
  const auto key = at::autocast::get_autocast_dispatch_key_from_device_type(impl_->device);
  impl_->libraries.erase(name);
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, name.substr(0, name.find("::")), key, __FILE__, __LINE__);
  for (const auto& overload : overloads) {
    const auto full = name + (overload.schema().overload_name().empty() ? "" : "." + overload.schema().overload_name());
    library->impl(full.c_str(),
                  cpu ? kernel_of<c10::DeviceType::CPU>(policy) : kernel_of<c10::DeviceType::CUDA>(policy));
  }
  impl_->libraries.emplace(name, std::move(library));
}

void OpPolicies::set_apex_lists() {
  for (const char* op :
       {"gelu", "std", "var", "renorm", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
        "upsample_linear1d", "upsample_bilinear2d", "upsample_bicubic2d", "upsample_trilinear3d", "_ctc_loss"}) {
    set(op, CastPolicy::kFloat32);
  }
  for (const char* op : {"binary_cross_entropy", "acos_", "asin_", "cosh_", "erfinv_", "exp_", "expm1_", "log_",
                         "log10_", "log2_", "reciprocal_", "rsqrt_", "sinh_", "tan_", "pow_"}) {
    set(op, CastPolicy::kRefuse);
  }
}

}  // namespace hasten::precision
