// See living_casts.h.
#include "hasten/precision/living_casts.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/linear.h>

#include <atomic>
#include <mutex>
#include <utility>

#include "hasten/compat/storage_watch.h"
#include "hasten/interception/interceptor.h"
#include "hasten/precision/known_limitations.h"
#include "precision/scope_casts.h"

namespace hasten::precision {
namespace {

using interception::Stack;

bool may_differentiate() {
  return !interception::is_below_autograd() || c10::InferenceMode::is_enabled();
}

// The copy in the argument's place; the gradient goes back to the argument, in its dtype.
struct CastNode : torch::autograd::Function<CastNode> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor&, const at::Tensor& copy) {
    return copy.detach();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0].to(at::kFloat), at::Tensor()};
  }
};

// A parameter, held weakly: its interceptors are held by it.
class Parameter {
 public:
  explicit Parameter(const at::Tensor& tensor) : impl_(tensor.getIntrusivePtr()) {}
  at::Tensor lock() const {
    auto impl = impl_.lock();
    return impl ? at::Tensor(std::move(impl)) : at::Tensor();
  }
  /// Returns true if the tensor is the parameter, or a view of its memory in its dtype.
  static bool is_part_of(const at::Tensor& tensor, const at::Tensor& parameter) {
    if (!tensor.defined() || tensor.scalar_type() != parameter.scalar_type() || !tensor.has_storage()) return false;
    return tensor.storage().unsafeGetStorageImpl() == parameter.storage().unsafeGetStorageImpl();
  }

 private:
  c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl> impl_;
};

// Sets a flag when the memory is about to be written to.
struct WriteFlag : compat::StorageListener {
  void before_write(c10::StorageImpl&) override { written = true; }
  std::atomic<bool> written = true;
};

class LivingCast : public interception::Interceptor {
 public:
  LivingCast(const at::Tensor& parameter, std::shared_ptr<std::atomic<int64_t>> count)
      : parameter_(parameter), count_(std::move(count)) {}
  ~LivingCast() override { detail::scope_casts().nodes.erase(this); }

  std::vector<std::string_view> operators() const override {
    return {"aten::linear",
            "aten::addmm",
            "aten::mm",
            "aten::matmul",
            "aten::bmm",
            "aten::baddbmm",
            "aten::conv1d",
            "aten::conv2d",
            "aten::conv3d",
            "aten::conv_transpose1d",
            "aten::conv_transpose2d",
            "aten::conv_transpose3d",
            "aten::prelu",
            "aten::mkldnn_rnn_layer"};
  }

  bool intercept(const c10::OperatorHandle& op, Stack& stack) override {
    const at::Tensor parameter = parameter_.lock();
    if (!parameter.defined() || !may_differentiate()) return false;
    const auto device = parameter.device().type();
    if (!at::autocast::is_autocast_enabled(device)) return false;
    if (op.schema().name() == "aten::mkldnn_rnn_layer" && recurrent_layers_need_float32()) return false;
    // Before libtorch 2.13 a watch copies the memory at each write, which a device has no room for.
    if (!parameter.is_cpu() && !compat::listeners_run_before_writes()) return false;
    const auto dtype = at::autocast::get_autocast_dtype(device);
    for (size_t i = stack.size() - op.schema().arguments().size(); i < stack.size(); ++i) {
      if (!stack[i].isTensor() || !Parameter::is_part_of(stack[i].toTensor(), parameter)) continue;
      const at::Tensor argument = stack[i].toTensor();
      stack[i] = cast_of(argument, parameter, dtype);
    }
    return false;
  }

 private:
  at::Tensor cast_of(const at::Tensor& argument, const at::Tensor& parameter, at::ScalarType dtype) {
    const std::lock_guard lock(mutex_);
    refresh(parameter, dtype);
    const bool differentiates = at::GradMode::is_enabled() && argument.requires_grad();
    if (!argument.is_same(parameter)) {
      const auto offset = argument.storage_offset() - parameter.storage_offset();
      const auto part = copy_.as_strided(argument.sizes(), argument.strides(), offset);
      return differentiates ? CastNode::apply(argument, part) : part;
    }
    if (!differentiates) return copy_;
    auto& casts = detail::scope_casts();
    const auto shared = casts.nodes.find(this);
    if (shared != casts.nodes.end() && shared->second.is_alias_of(copy_)) return shared->second;
    at::Tensor node = CastNode::apply(argument, copy_);
    if (casts.depth > 0 && at::autocast::is_autocast_cache_enabled()) casts.nodes[this] = node;
    return node;
  }

  bool is_fresh(const at::Tensor& parameter, at::ScalarType dtype) {
    if (!copy_.defined() || copy_.scalar_type() != dtype) return false;
    watch_.check();
    const bool inference = parameter.is_inference();
    return !flag_->written && parameter.storage().unsafeGetStorageImpl() == storage_ &&
           parameter.const_data_ptr() == address_ && (inference || parameter._version() == version_) &&
           parameter.sizes() == copy_.sizes();
  }

  void refresh(const at::Tensor& parameter, at::ScalarType dtype) {
    if (is_fresh(parameter, dtype)) return;
    detail::scope_casts().nodes.erase(this);
    // An evaluation in inference mode may make the copy that training saves afterwards.
    const c10::InferenceMode no_inference(false);
    const at::NoGradGuard no_grad;
    const interception::PassScope pass;
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autocast_dispatch_keyset);
    if (parameter.storage().unsafeGetStorageImpl() != storage_) {
      watch_ = compat::StorageWatch(parameter, flag_);
      storage_ = parameter.storage().unsafeGetStorageImpl();
    }
    // Armed first, copied after: a write in between is noticed.
    flag_->written = false;
    watch_.rearm();
    const at::Tensor source = parameter.detach();
    // A new tensor, not the old one's memory: a backward may still hold that.
    copy_ = source.to(dtype, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Preserve);
    address_ = parameter.const_data_ptr();
    version_ = parameter.is_inference() ? 0 : parameter._version();
    ++*count_;
  }

  std::mutex mutex_;
  Parameter parameter_;
  std::shared_ptr<std::atomic<int64_t>> count_;
  std::shared_ptr<WriteFlag> flag_ = std::make_shared<WriteFlag>();
  compat::StorageWatch watch_;
  at::Tensor copy_;
  const c10::StorageImpl* storage_ = nullptr;
  const void* address_ = nullptr;
  uint32_t version_ = 0;
};

// The parts of a product with the weight: input, weight as [n, k], bias. Undefined if it is none of the known forms.
struct Product {
  at::Tensor input, weight, bias;
};

Product product_of(const c10::OperatorHandle& op, const Stack& stack, const at::Tensor& parameter) {
  const auto argument = [&](size_t index) -> at::Tensor {
    const auto& value = stack[stack.size() - op.schema().arguments().size() + index];
    return value.isTensor() ? value.toTensor() : at::Tensor();
  };
  const auto is_transposed = [&](const at::Tensor& tensor) {
    return Parameter::is_part_of(tensor, parameter) && tensor.dim() == 2 && tensor.size(0) == parameter.size(1) &&
           tensor.size(1) == parameter.size(0) && tensor.stride(0) == parameter.stride(1) &&
           tensor.stride(1) == parameter.stride(0);
  };
  const auto& name = op.schema().name();
  if (name == "aten::linear" && argument(1).is_same(parameter)) return {argument(0), parameter, argument(2)};
  if (name == "aten::addmm" && is_transposed(argument(2))) {
    const auto number = [&](size_t index) {
      return stack[stack.size() - op.schema().arguments().size() + index].toScalar().toDouble();
    };
    if (number(3) == 1 && number(4) == 1) return {argument(1), argument(2).t(), argument(0)};
  }
  if ((name == "aten::mm" || name == "aten::matmul") && is_transposed(argument(1)))
    return {argument(0), argument(1).t(), {}};
  return {};
}

class Fp8Weight : public interception::Interceptor {
 public:
  Fp8Weight(const at::Tensor& weight, const Fp8Options& options) : parameter_(weight), options_(options) {}
  std::vector<std::string_view> operators() const override {
    return {"aten::linear", "aten::addmm", "aten::mm", "aten::matmul"};
  }

  bool intercept(const c10::OperatorHandle& op, Stack& stack) override {
    const at::Tensor parameter = parameter_.lock();
    if (!parameter.defined() || interception::is_below_autograd()) return false;
    const auto device = parameter.device().type();
    if (!at::autocast::is_autocast_enabled(device)) return false;
    const bool trains = at::GradMode::is_enabled();
    if (options_.recipe == Fp8Recipe::kDelayed && !trains && !options_.use_autocast_during_eval) return false;
    const auto product = product_of(op, stack, parameter);
    if (!product.input.defined()) return false;
    const auto dtype = at::autocast::get_autocast_dtype(device);
    const c10::impl::ExcludeDispatchKeyGuard below(c10::autocast_dispatch_keyset);
    auto y = fp8_linear(product.input.to(dtype), product.weight, options_, &scales);
    if (product.bias.defined()) y = y + product.bias.to(dtype);
    stack.resize(stack.size() - op.schema().arguments().size());
    stack.emplace_back(std::move(y));
    return true;
  }

  DelayedScales scales;

 private:
  Parameter parameter_;
  Fp8Options options_;
};

}  // namespace

struct LivingCasts::Impl {
  std::shared_ptr<std::atomic<int64_t>> count = std::make_shared<std::atomic<int64_t>>(0);
  std::vector<std::pair<at::Tensor, std::shared_ptr<interception::Interceptor>>> casts = {};
};

LivingCasts::LivingCasts(const torch::nn::Module& module) : impl_(std::make_unique<Impl>()) {
  for (const auto& parameter : module.parameters()) {
    if (parameter.scalar_type() != at::kFloat || parameter.layout() != at::kStrided || parameter.is_meta()) continue;
    if (!parameter.is_non_overlapping_and_dense() || interception::find_interceptor<LivingCast>(parameter)) continue;
    auto cast = std::make_shared<LivingCast>(parameter, impl_->count);
    interception::add_interceptor(parameter, cast);
    impl_->casts.emplace_back(parameter, std::move(cast));
  }
}

LivingCasts::~LivingCasts() {
  if (!impl_) return;
  for (const auto& [parameter, cast] : impl_->casts) interception::remove_interceptor(parameter, cast.get());
}
LivingCasts::LivingCasts(LivingCasts&&) noexcept = default;
LivingCasts& LivingCasts::operator=(LivingCasts&&) noexcept = default;

int64_t LivingCasts::num_casts() const noexcept {
  return *impl_->count;
}

struct Fp8Layers::Impl {
  std::vector<std::string> names;
  std::vector<std::pair<at::Tensor, std::shared_ptr<interception::Interceptor>>> weights = {};
  std::vector<DelayedScales*> scales = {};
};

Fp8Layers::Fp8Layers(const torch::nn::Module& module, const Fp8Options& options)
    : impl_(std::make_unique<Impl>(Impl{fp8_layers(module, options)})) {
  const auto modules = module.named_modules("", /*include_self=*/false);
  for (const auto& name : impl_->names) {
    const auto& weight = dynamic_cast<const torch::nn::LinearImpl&>(*modules[name]).weight;
    auto own = std::make_shared<Fp8Weight>(weight, options);
    interception::add_interceptor(weight, own);
    impl_->scales.push_back(&own->scales);
    impl_->weights.emplace_back(weight, std::move(own));
  }
}

Fp8Layers::~Fp8Layers() {
  if (!impl_) return;
  for (const auto& [weight, own] : impl_->weights) interception::remove_interceptor(weight, own.get());
}
Fp8Layers::Fp8Layers(Fp8Layers&&) noexcept = default;
Fp8Layers& Fp8Layers::operator=(Fp8Layers&&) noexcept = default;

const std::vector<std::string>& Fp8Layers::names() const noexcept {
  return impl_->names;
}

std::vector<DelayedScales*> Fp8Layers::scales() const {
  return impl_->scales;
}

}  // namespace hasten::precision
