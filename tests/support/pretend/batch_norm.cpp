// CUDA's own kernels of a batch normalisation over several devices. The CPU has none, so they are written out here.
#include <ATen/Functions.h>
#include <torch/library.h>

#include <optional>
#include <tuple>
#include <vector>

namespace hasten::testing::pretend {
namespace {

// As libtorch's: sums are of single precision at least.
at::ScalarType sum_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

std::vector<int64_t> all_but_channels(const at::Tensor& input) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

at::Tensor over(const at::Tensor& values, const at::Tensor& input) {
  std::vector<int64_t> shape(static_cast<size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> backward_reduce(
    const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean, const at::Tensor& inverse,
    const std::optional<at::Tensor>& weight, bool, bool for_weight, bool for_bias) {
  const auto type = sum_type(input);
  const at::Tensor dy = gradient.to(type), centred = input.to(type) - over(mean, input);
  const auto dims = all_but_channels(input);
  const at::Tensor sum = dy.sum(dims), sum_centred = (dy * centred).sum(dims);
  const auto of_weight = weight && weight->defined() ? weight->scalar_type() : type;
  return {sum, sum_centred, for_weight ? (sum_centred * inverse).to(of_weight) : at::Tensor(),
          for_bias ? sum.to(of_weight) : at::Tensor()};
}

at::Tensor backward_elements(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& mean,
                             const at::Tensor& inverse, const std::optional<at::Tensor>& weight, const at::Tensor& sum,
                             const at::Tensor& sum_centred, const at::Tensor& counts) {
  TORCH_CHECK(counts.scalar_type() == at::kInt, "counts are int32");
  const auto type = sum_type(input);
  const at::Tensor count = counts.sum().to(type);
  const at::Tensor scale = weight && weight->defined() ? inverse * weight->to(type) : inverse;
  const at::Tensor centred = input.to(type) - over(mean, input);
  const at::Tensor dx =
      gradient.to(type) - over(sum / count, input) - centred * over(sum_centred / count * inverse.square(), input);
  return (dx * over(scale, input)).to(input.scalar_type());
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("batch_norm_backward_reduce", &backward_reduce);
  library.impl("batch_norm_backward_elemt", &backward_elements);
}

}  // namespace hasten::testing::pretend
