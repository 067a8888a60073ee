// See global_batch_norm.h.
#include "parallel/statistics/global_batch_norm.h"

#include <ATen/OpMathType.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/types.h>

#include <vector>

#include "hasten/core/error.h"

namespace hasten::parallel {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

const SyncGroup& group_of(const c10::IValue& capsule) {
  return static_cast<const SyncGroup&>(*capsule.toCapsule());
}

// The sum over all ranks. Every rank's input is in every rank's result, so gradients are summed likewise.
struct SumOverRanks : torch::autograd::Function<SumOverRanks> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& tensor, const c10::IValue& capsule) {
    context->saved_data["group"] = capsule;
    at::Tensor sum = tensor.clone();
    group_of(capsule).sum_(sum);
    return sum;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {apply(gradients[0], context->saved_data["group"]), at::Tensor()};
  }
};

at::ScalarType sum_dtype(const at::Tensor& input) {
  return at::toOpMathType(input.scalar_type());
}

// All dims but that of the channels.
std::vector<int64_t> reduced_dims(const at::Tensor& input) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

// [channels] in the shape that broadcasts over `like`.
at::Tensor per_channel(const at::Tensor& values, const at::Tensor& like) {
  std::vector<int64_t> shape(static_cast<size_t>(like.dim()), 1);
  shape[1] = values.size(0);
  return values.view(shape);
}

// Over the batches of all ranks: [channels], [channels] (biased) and the values a channel, [].
struct Statistics {
  at::Tensor mean;
  at::Tensor var;
  at::Tensor count;
};

Statistics statistics_of_all(const at::Tensor& input, const SyncGroup& group) {
  const int64_t channels = input.size(1);
  const int64_t count = channels == 0 ? 0 : input.numel() / channels;
  const auto options = input.options().dtype(sum_dtype(input));
  at::Tensor var = at::zeros({channels}, options), mean = var;
  if (count > 0) {
    std::tie(var, mean) = at::var_mean(input.to(options.dtype()), reduced_dims(input), /*correction=*/0);
  }
  const at::Tensor mine = at::cat({mean, var, at::full({1}, static_cast<double>(count), options)});
  const at::Tensor all = group.gather(mine);
  const at::Tensor means = all.narrow(1, 0, channels);
  const at::Tensor vars = all.narrow(1, channels, channels);
  const at::Tensor counts = all.narrow(1, 2 * channels, 1);
  const at::Tensor total = counts.sum(), divisor = total.clamp_min(1);
  mean = (means * counts).sum(0) / divisor;
  var = ((vars + (means - mean).square()) * counts).sum(0) / divisor;
  return {mean, var, total};
}

void refuse_a_single_value(const Statistics& statistics, const comm::Group& group) {
  if (!statistics.count.device().is_cpu() || statistics.count.item<double>() != 1) return;
  throw UsageError(Origin{"sync_batch_norm", group.rank(), group.world_size()},
                   "the batches of all ranks together have 1 value a channel, which has no variance; expected "
                   "more. Use larger batches.");
}

// As libtorch does: momentum times the new values (the variance unbiased); nothing where there were none.
void update_running(const BatchNormTensors& tensors, const Statistics& statistics, double momentum) {
  if (!tensors.running_mean.defined()) return;
  const at::Tensor factor = statistics.count.gt(0).to(statistics.mean.dtype()) * momentum;
  const at::Tensor unbiased = statistics.var * (statistics.count / (statistics.count - 1).clamp_min(1));
  tensors.running_mean.add_((statistics.mean - tensors.running_mean) * factor);
  tensors.running_var.add_((unbiased - tensors.running_var) * factor);
}

// Gradients by CUDA's kernels for this: two passes over input and gradient, in their own precision.
struct DeviceBackward {
  at::Tensor input, weight, mean, inverse, count;

  variable_list run(const at::Tensor& dy, bool has_bias, const c10::IValue& capsule) const {
    const auto [sum, sum_centred, dw, db] =
        at::batch_norm_backward_reduce(dy, input, mean, inverse, weight, /*input_g=*/true,
                                       /*weight_g=*/weight.defined(), /*bias_g=*/has_bias);
    const at::Tensor sums = at::cat({sum, sum_centred});
    group_of(capsule).sum_(sums);
    const auto all = sums.chunk(2);
    const at::Tensor dx =
        at::batch_norm_backward_elemt(dy, input, mean, inverse, weight, all[0], all[1], count.to(at::kInt).view({1}));
    const at::Tensor none;
    return {dx, dw, db, none, none, none};
  }
};

struct GlobalBatchNorm : torch::autograd::Function<GlobalBatchNorm> {
  // Optional, because a Tensor argument has to be defined.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& maybe_weight, const std::optional<at::Tensor>& maybe_bias,
                            const BatchNormTensors& tensors, const BatchNormNumbers& numbers,
                            const c10::IValue& capsule) {
    const at::Tensor weight = maybe_weight.value_or(at::Tensor()), bias = maybe_bias.value_or(at::Tensor());
    const SyncGroup& group = group_of(capsule);
    const Statistics statistics = statistics_of_all(input, group);
    refuse_a_single_value(statistics, group.group());
    update_running(tensors, statistics, numbers.momentum);
    context->save_for_backward({input, weight, statistics.mean, statistics.var, statistics.count});
    context->saved_data["eps"] = numbers.eps;
    context->saved_data["has_bias"] = bias.defined();
    context->saved_data["group"] = capsule;
    if (input.numel() == 0) return input.clone();
    const auto in_sum_dtype = [&](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.to(statistics.mean.dtype()) : tensor;
    };
    return std::get<0>(at::native_batch_norm(input, in_sum_dtype(weight), in_sum_dtype(bias), statistics.mean,
                                             statistics.var, /*training=*/false, /*momentum=*/0, numbers.eps));
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &input = saved[0], &weight = saved[1], &count = saved[4];
    const c10::IValue capsule = context->saved_data["group"];
    const auto dtype = sum_dtype(input);
    if (input.is_cuda() && input.numel() > 0 && !at::GradMode::is_enabled()) {
      const at::Tensor inverse = (saved[3] + context->saved_data["eps"].toDouble()).rsqrt();
      // The kernels take one layout of memory for both.
      const auto format = input.suggest_memory_format();
      const at::Tensor dy = group_of(capsule).is_silent() ? at::zeros_like(input) : gradients[0].to(input.dtype());
      return DeviceBackward{input.contiguous(format), weight, saved[2], inverse, count}.run(
          dy.contiguous(format), context->saved_data["has_bias"].toBool(), capsule);
    }
    const at::Tensor x = input.to(dtype);
    const at::Tensor dy = group_of(capsule).is_silent() ? at::zeros_like(x) : gradients[0].to(dtype);
    const auto dims = reduced_dims(input);
    const at::Tensor divisor = count.clamp_min(1);
    at::Tensor mean = saved[2], var = saved[3];
    // Saved values are constants. A backward that will be differentiated needs them as functions of x.
    if (at::GradMode::is_enabled()) mean = SumOverRanks::apply(x.sum(dims), capsule) / divisor;
    const at::Tensor centred = x - per_channel(mean, x);
    if (at::GradMode::is_enabled()) var = SumOverRanks::apply(centred.square().sum(dims), capsule) / divisor;
    const at::Tensor inverse = (var + context->saved_data["eps"].toDouble()).rsqrt();

    const at::Tensor sum = dy.sum(dims), sum_centred = (dy * centred).sum(dims);
    const auto all = SumOverRanks::apply(at::cat({sum, sum_centred}), capsule).div(divisor).chunk(2);
    const at::Tensor scale = weight.defined() ? inverse * weight.to(dtype) : inverse;
    const at::Tensor dx = (dy - per_channel(all[0], x)) * per_channel(scale, x) -
                          centred * per_channel(all[1] * inverse.square() * scale, x);
    const at::Tensor none;
    const at::Tensor dw = weight.defined() ? (sum_centred * inverse).to(weight.dtype()) : none;
    const at::Tensor db = context->saved_data["has_bias"].toBool() ? sum.to(weight.dtype()) : none;
    return {dx.to(input.dtype()), dw, db, none, none, none};
  }
};

}  // namespace

c10::intrusive_ptr<SyncGroup> sync_group_of(torch::autograd::Node& node) {
  auto* own = dynamic_cast<torch::autograd::CppNode<GlobalBatchNorm>*>(&node);
  if (own == nullptr) return {};
  return c10::static_intrusive_pointer_cast<SyncGroup>(own->ctx_.saved_data["group"].toCapsule());
}

at::Tensor global_batch_norm(const at::Tensor& input, const BatchNormTensors& tensors, const BatchNormNumbers& numbers,
                             const c10::intrusive_ptr<SyncGroup>& group) {
  const auto capsule = c10::IValue::make_capsule(group);
  return GlobalBatchNorm::apply(input, std::optional(tensors.weight), std::optional(tensors.bias), tensors, numbers,
                                capsule);
}

}  // namespace hasten::parallel
