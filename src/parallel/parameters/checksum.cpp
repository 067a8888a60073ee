// See checksum.h.
#include "hasten/parallel/parameters/checksum.h"

#include <torch/types.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "hasten/core/hash.h"

namespace hasten::parallel {
namespace {

// On a CPU a hash of the bytes. On other devices the elements, taken for integers, each times an odd number of its own,
// added up: exact in any order. Without those numbers a constant added to positive and negative elements alike would
// cancel itself out.
at::Tensor checksum(const at::Tensor& tensor) {
  if (tensor.is_cpu() && tensor.layout() == at::kStrided) {
    const at::Tensor whole = tensor.detach().contiguous();
    return torch::tensor(static_cast<int64_t>(core::xxh3_128(whole.const_data_ptr(), whole.nbytes()).low), at::kLong);
  }
  // At a time, so that little memory is needed.
  constexpr int64_t kMost = 1 << 20;
  constexpr int64_t kOdd = 0x1E3779B97F4A7C15;
  const at::Tensor flat = tensor.detach().contiguous().flatten();
  if (flat.numel() == 0) return torch::zeros({}, at::kLong);
  const auto size = flat.element_size();
  const auto dtype = size % 8 == 0 ? at::kLong : size == 4 ? at::kInt : size == 2 ? at::kShort : at::kByte;
  const at::Tensor bits = flat.view(dtype);
  const auto options = bits.options().dtype(at::kLong);
  const at::Tensor factors = torch::arange(1, std::min(bits.numel(), kMost) + 1, options).mul_(kOdd).bitwise_or_(1);
  at::Tensor sum = torch::zeros({}, options);
  for (const at::Tensor& part : bits.split(kMost)) {
    sum = sum * kOdd + (part * factors.narrow(0, 0, part.numel())).sum();
  }
  return sum;
}

}  // namespace

at::Tensor checksums(const std::vector<at::Tensor>& tensors) {
  const at::Tensor all = torch::zeros({static_cast<int64_t>(tensors.size())}, at::kLong);
  std::map<std::string, std::pair<std::vector<at::Tensor>, std::vector<size_t>>> by_device;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (!tensors[i].defined() || tensors[i].is_meta()) continue;
    const at::Tensor sum = checksum(tensors[i]);
    auto& [sums, places] = by_device[sum.device().str()];
    sums.push_back(sum);
    places.push_back(i);
  }
  for (const auto& [device, found] : by_device) {
    const at::Tensor sums = at::stack(found.first).cpu();
    for (size_t i = 0; i < found.second.size(); ++i) {
      all.data_ptr<int64_t>()[found.second[i]] = sums.const_data_ptr<int64_t>()[i];
    }
  }
  return all;
}

}  // namespace hasten::parallel
