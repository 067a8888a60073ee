// See hasten/parallel/compress/power_sgd.h. Every rank holds the same thin matrices after each message, so all make
// the same of them.
#include "hasten/parallel/compress/power_sgd.h"

#include <ATen/CPUGeneratorImpl.h>
#include <torch/types.h>

#include <algorithm>
#include <limits>
#include <map>
#include <memory>
#include <utility>

#include "hasten/comm/types/purpose.h"
#include "hasten/core/error.h"

namespace hasten::parallel {
namespace {

using WeakTensor = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

// State of a parameter.
struct Remembered {
  WeakTensor parameter;
  int64_t exchanges = 0;
  at::Tensor q;      // [m, r]
  at::Tensor error;  // [n, m]
};

// A compressed gradient on its way: M [n, m] is about P Qᵀ with P [n, r], Q [m, r].
struct Factored {
  at::Tensor gradient;
  Remembered* memory;
  at::Tensor matrix, p, q;
};

at::Tensor orthogonal(const at::Tensor& thin) {
  return std::get<0>(at::linalg_qr(thin));
}

// Views of `flat` in the shapes of `like`, one after the other.
std::vector<at::Tensor> pieces(const at::Tensor& flat, const std::vector<at::Tensor>& like) {
  std::vector<at::Tensor> views;
  int64_t offset = 0;
  for (const at::Tensor& tensor : like) {
    views.push_back(flat.narrow(0, offset, tensor.numel()).view(tensor.sizes()));
    offset += tensor.numel();
  }
  return views;
}

at::Tensor flattened(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  return at::cat(flat);
}

class PowerSgd : public std::enable_shared_from_this<PowerSgd> {
 public:
  explicit PowerSgd(const PowerSgdOptions& options)
      : options_(options), generator_(at::detail::createCPUGenerator(options.seed)) {}

  comm::Work<> run(const GradientBucket& bucket, const comm::Group& group) {
    const auto dtype = bucket.buffer.scalar_type();
    const bool takes_dtype = dtype == at::kFloat || dtype == at::kDouble;
    std::vector<Factored> factored;
    std::vector<at::Tensor> message, uncompressed;
    for (size_t i = 0; i < bucket.gradients.size(); ++i) {
      Remembered& memory = memory_of(bucket.parameters[i]);
      const bool started = memory.exchanges++ >= options_.start_iteration;
      if (started && takes_dtype && shrinks(bucket.gradients[i])) {
        factored.push_back(begin(bucket.gradients[i], memory));
      } else {
        uncompressed.push_back(bucket.gradients[i]);
      }
    }
    if (factored.empty()) return group.all_reduce_async_(bucket.buffer);
    message = uncompressed;
    for (const Factored& one : factored) message.push_back(one.p);
    const at::Tensor flat = flattened(message);
    return group.all_reduce_async_(flat).then(
        [self = shared_from_this(), group, flat, message, uncompressed, factored]() mutable {
          const auto sums = pieces(flat, message);
          for (size_t i = 0; i < uncompressed.size(); ++i) uncompressed[i].copy_(sums[i]);
          for (size_t i = 0; i < factored.size(); ++i) factored[i].p = sums[uncompressed.size() + i];
          self->end(factored, group);
        });
  }

 private:
  bool shrinks(const at::Tensor& gradient) const {
    if (gradient.dim() < 2 || gradient.numel() == 0) return false;
    const int64_t n = gradient.size(0), m = gradient.numel() / n;
    const int64_t rank = std::min({n, m, options_.matrix_approximation_rank});
    return static_cast<double>((n + m) * rank) * options_.min_compression_rate < static_cast<double>(n * m);
  }

  Remembered& memory_of(const at::Tensor& parameter) {
    auto& known = memories_[parameter.unsafeGetTensorImpl()];
    // The address may have been another parameter's, which is gone.
    if (!known || known->parameter.expired()) {
      std::erase_if(memories_,
                    [&](const auto& entry) { return &entry.second != &known && entry.second->parameter.expired(); });
      known = std::make_unique<Remembered>(Remembered{WeakTensor(parameter.getIntrusivePtr()), 0, {}, {}});
    }
    return *known;
  }

  Factored begin(const at::Tensor& gradient, Remembered& memory) {
    Factored one{gradient, &memory, gradient.reshape({gradient.size(0), -1}).clone(), {}, {}};
    const int64_t n = one.matrix.size(0), m = one.matrix.size(1);
    if (options_.use_error_feedback && memory.error.defined()) one.matrix.add_(memory.error);
    if (!memory.q.defined() || !options_.warm_start) {
      const int64_t rank = std::min({n, m, options_.matrix_approximation_rank});
      memory.q = at::randn({m, rank}, generator_, at::TensorOptions(at::kDouble)).to(one.matrix.options());
    }
    one.p = one.matrix.mm(orthogonal(memory.q));
    return one;
  }

  // The second half of the power iteration, from the summed P on.
  void end(std::vector<Factored>& factored, const comm::Group& group) {
    std::vector<at::Tensor> message;
    for (Factored& one : factored) {
      one.p = orthogonal(one.p);
      one.q = one.matrix.t().mm(one.p);
      message.push_back(one.q);
    }
    const at::Tensor flat = flattened(message);
    const comm::Purpose purpose("second factors of gradients");
    group.all_reduce_(flat);
    const auto sums = pieces(flat, message);
    for (size_t i = 0; i < factored.size(); ++i) {
      Factored& one = factored[i];
      const at::Tensor sum = one.p.mm(sums[i].t());
      // A gradient that is not finite on one rank would stay in the memory for ever. All ranks have the same sum, so
      // all take it over or none. The step itself gets NaN.
      const at::Tensor finite = at::isfinite(sum).all();
      one.gradient.copy_(at::where(finite, sum, std::numeric_limits<double>::quiet_NaN()).view(one.gradient.sizes()));
      one.memory->q = at::where(finite, sums[i], one.memory->q);
      if (!options_.use_error_feedback) continue;
      // The ranks' errors add up to what the sum lacks.
      const at::Tensor error = one.matrix.sub_(sum, 1.0 / group.world_size());
      one.memory->error =
          at::where(finite, error, one.memory->error.defined() ? one.memory->error : at::zeros_like(error));
    }
  }

  PowerSgdOptions options_;
  at::Generator generator_;
  std::map<const c10::TensorImpl*, std::unique_ptr<Remembered>> memories_;
};

}  // namespace

CommHook power_sgd(const PowerSgdOptions& options) {
  if (options.matrix_approximation_rank < 1 || options.start_iteration < 0 || !(options.min_compression_rate > 0)) {
    throw UsageError(Origin{"power_sgd"}, "matrix_approximation_rank is ", options.matrix_approximation_rank,
                     ", start_iteration ", options.start_iteration, ", min_compression_rate ",
                     options.min_compression_rate,
                     "; the rank must be at least 1, the start not below 0, the rate above 0.");
  }
  return [hook = std::make_shared<PowerSgd>(options)](const GradientBucket& bucket, const comm::Group& group) {
    return hook->run(bucket, group);
  };
}

}  // namespace hasten::parallel
