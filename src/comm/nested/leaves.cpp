// Numbers of nested structures as tensors; see leaves.h.
#include "hasten/comm/nested/leaves.h"

#include <torch/types.h>

#include "hasten/core/error.h"

namespace hasten::comm::detail {

int64_t NumberTensors::checked_integer(bool fits, int64_t value) {
  if (fits) return value;
  throw UsageError(Origin{"comm"}, "reduce: the integer ", value,
                   " does not fit its type. Give the number as int64_t, or as double.");
}

void NumberTensors::append_to(std::vector<at::Tensor>& tensors) const {
  if (!integers_.empty()) tensors.push_back(torch::tensor(integers_, at::kLong));
  if (!reals_.empty()) tensors.push_back(torch::tensor(reals_, at::kDouble));
  if (!flags_.empty()) tensors.push_back(torch::tensor(flags_, at::kByte).to(at::kBool));
}

void NumberTensors::read_from(std::vector<at::Tensor>& tensors) {
  const auto take = [&](auto& numbers, at::ScalarType dtype) {
    if (numbers.empty()) return;
    using Number = typename std::decay_t<decltype(numbers)>::value_type;
    const at::Tensor values = tensors.back().to(at::kCPU, dtype).contiguous();
    numbers.assign(values.const_data_ptr<Number>(), values.const_data_ptr<Number>() + values.numel());
    tensors.pop_back();
  };
  take(flags_, at::kByte);
  take(reals_, at::kDouble);
  take(integers_, at::kLong);
}

}  // namespace hasten::comm::detail
