// See cast_weights.h.
#include "hasten/offload/units/cast_weights.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "hasten/interception/interceptor.h"

namespace hasten::offload {
namespace {

// Operators that see the weight as it rests.
constexpr std::array<std::string_view, 12> kStorageOperators{"aten::detach",
                                                             "aten::clone",
                                                             "aten::to",
                                                             "aten::_to_copy",
                                                             "aten::alias",
                                                             "aten::set_",
                                                             "aten::set_data",
                                                             "aten::is_same_size",
                                                             "aten::requires_grad_",
                                                             "aten::_version",
                                                             "aten::_has_compatible_shallow_copy_type",
                                                             "aten::data"};

}  // namespace

class CastWeights::Engine : public interception::Interceptor {
 public:
  Engine(std::vector<at::Tensor> weights, at::ScalarType compute_type)
      : weights_(std::move(weights)), compute_type_(compute_type) {
    for (const at::Tensor& weight : weights_) managed_.insert(weight.unsafeGetTensorImpl());
  }

  interception::Level level() const override { return interception::Level::kEveryOperator; }

  bool intercept(const c10::OperatorHandle& op, interception::Stack& stack) override {
    if (std::find(kStorageOperators.begin(), kStorageOperators.end(), op.schema().name()) != kStorageOperators.end())
      return false;
    const auto& arguments = op.schema().arguments();
    const size_t base = stack.size() - arguments.size();
    for (size_t i = 0; i < arguments.size(); ++i) {
      if (arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite()) continue;
      c10::IValue& value = stack[base + i];
      if (value.isTensor()) {
        if (is_managed(value.toTensor())) value = cast(value.toTensor());
      } else if (value.isTensorList()) {
        auto tensors = value.toTensorVector();
        for (at::Tensor& tensor : tensors) {
          if (is_managed(tensor)) tensor = cast(tensor);
        }
        value = tensors;
      }
    }
    return false;
  }

  at::ScalarType compute_type() const { return compute_type_; }
  const std::vector<at::Tensor>& weights() const { return weights_; }

 private:
  bool is_managed(const at::Tensor& tensor) const {
    return tensor.defined() && managed_.count(tensor.unsafeGetTensorImpl()) > 0;
  }
  at::Tensor cast(const at::Tensor& tensor) const { return tensor.to(compute_type_); }

  std::vector<at::Tensor> weights_;
  std::unordered_set<const c10::TensorImpl*> managed_;
  at::ScalarType compute_type_;
};

CastWeights::CastWeights(std::vector<at::Tensor> weights, at::ScalarType compute_type)
    : engine_(std::make_shared<Engine>(std::move(weights), compute_type)) {
  for (const at::Tensor& weight : engine_->weights()) interception::add_interceptor(weight, engine_);
}

CastWeights::~CastWeights() {
  stop();
}

CastWeights::CastWeights(CastWeights&&) noexcept = default;

CastWeights& CastWeights::operator=(CastWeights&& other) noexcept {
  if (this != &other) {
    stop();
    engine_ = std::move(other.engine_);
  }
  return *this;
}

void CastWeights::stop() {
  if (!engine_) return;
  for (const at::Tensor& weight : engine_->weights()) interception::remove_interceptor(weight, engine_.get());
}

at::ScalarType CastWeights::compute_type() const {
  return engine_->compute_type();
}

const std::vector<at::Tensor>& CastWeights::weights() const {
  return engine_->weights();
}

at::ScalarType compute_type_of(const at::Tensor& tensor) {
  at::ScalarType type = tensor.scalar_type();
  for (const auto& interceptor : interception::interceptors_of(tensor, interception::Level::kEveryOperator)) {
    if (const auto cast = std::dynamic_pointer_cast<CastWeights::Engine>(interceptor)) type = cast->compute_type();
  }
  return type;
}

}  // namespace hasten::offload
