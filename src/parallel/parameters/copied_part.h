// Copies (clone()) of parameters of which a rank has a part. A copy has no record of what it is a part of, so what a
// model computes of it would be wrong without a word.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "hasten/core/error.h"
#include "hasten/core/text.h"
#include "hasten/interception/interceptor.h"

namespace hasten::parallel {

/// Returns true for operators of forwards, which no optimizer calls on parameters alone.
inline bool is_of_forwards(std::string_view name) noexcept {
  constexpr std::array kNames = std::to_array<std::string_view>(
      {"aten::linear", "aten::matmul", "aten::mm", "aten::addmm", "aten::bmm", "aten::baddbmm", "aten::t",
       "aten::embedding", "aten::layer_norm", "aten::native_layer_norm", "aten::rms_norm", "aten::conv1d",
       "aten::conv2d", "aten::convolution"});
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

/// At a copy: refuses operators of forwards.
class CopiedPart final : public interception::Interceptor {
 public:
  CopiedPart(std::string words, Origin origin) : words_(std::move(words)), origin_(std::move(origin)) {}
  interception::Level level() const override { return interception::Level::kEveryOperator; }
  bool intercept(const c10::OperatorHandle& op, interception::Stack&) override {
    if (!is_of_forwards(op.schema().name())) return false;
    throw UsageError(origin_, "'", op.schema().name(), "' on ", words_);
  }

 private:
  std::string words_;
  Origin origin_;
};

/// Marks a copy of the parameter `name`: operators of forwards on it are refused. Others, such as those of an average
/// of weights, pass. set_data takes the mark along, as Cloneable::clone does. `division`: "cut over tp".
inline void mark_copied_part(const at::Tensor& copy, const std::string& name, const std::string& division,
                             const Origin& origin) {
  interception::add_interceptor(
      copy, std::make_shared<CopiedPart>(
                text("a copy (clone()) of '", name, "', of which this rank has a part (", division,
                     "). The copy is not known as a part. Copy the model before prepare and prepare both, or fill a "
                     "copy from before prepare by parallel::gather_parameter."),
                origin));
}

}  // namespace hasten::parallel
