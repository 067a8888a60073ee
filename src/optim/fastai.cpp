// See fastai.h. On the CPU a contiguous float32 parameter is stepped in one pass. libtorch operators step all others.
#include "hasten/optim/fastai.h"

#include <ATen/Parallel.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "compat/versions.h"
#include "hasten/core/error.h"
#include "hasten/optim/steps/rules.h"
#include "optim/steps/kernels.h"

namespace hasten::optim::fastai {

struct Numbers {
  double lr, mom, sqr_mom, eps, wd, beta, nu_1, nu_2;
  double debias1, debias2;  ///< 1 - mom^t, 1 - sqr_mom^t
  double rectifier;         ///< RAdam's v; 0 where variance is not tractable yet
};

namespace {

Numbers numbers_of(const Options& o, int64_t step) {
  const auto t = static_cast<double>(step);
  Numbers n{.lr = o.lr(),
            .mom = o.mom(),
            .sqr_mom = o.sqr_mom(),
            .eps = o.eps(),
            .wd = o.wd(),
            .beta = o.beta(),
            .nu_1 = o.nu_1(),
            .nu_2 = o.nu_2(),
            .debias1 = 1 - std::pow(o.mom(), t),
            .debias2 = 1 - std::pow(o.sqr_mom(), t),
            .rectifier = 0};
  const double r_inf = 2 / (1 - n.sqr_mom) - 1;
  const double r = r_inf - 2 * t * std::pow(n.sqr_mom, t) / n.debias2;
  if (r > 5) n.rectifier = std::sqrt((r - 4) * (r - 2) * r_inf / ((r_inf - 4) * (r_inf - 2) * r));
  return n;
}

bool keeps_average(const Fixed& fixed) {
  return fixed.momentum || fixed.rule == Rule::kAdam || fixed.rule == Rule::kRAdam || fixed.rule == Rule::kQHAdam ||
         fixed.rule == Rule::kLamb;
}
bool damps(Rule rule) {
  return rule == Rule::kAdam || rule == Rule::kRAdam || rule == Rule::kQHAdam || rule == Rule::kLamb;
}
bool keeps_squares(Rule rule) {
  return damps(rule) || rule == Rule::kRmsProp;
}

/// The one pass of a rule: float32 memory on the CPU.
struct Arrays {
  float* p;
  const float* g;
  float* a;  ///< null without averages
  float* s;
  int64_t count;
};

constexpr int64_t kGrain = 1 << 16;

/// Where a pass over a layer begins. A second pass from the back finds in the cache what the first has read last.
enum class From { kFront, kBack };

/// Calls `fn(part, begin, count)` for parts of kGrain elements, on libtorch's threads.
template <class Fn>
void for_parts(int64_t count, const Fn& fn, From from = From::kFront) {
  const int64_t parts = (count + kGrain - 1) / kGrain;
  const auto some = [&](int64_t first, int64_t end) {
    for (int64_t i = first; i < end; ++i) {
      const int64_t part = from == From::kFront ? i : first + end - 1 - i, begin = part * kGrain;
      fn(static_cast<size_t>(part), begin, std::min(kGrain, count - begin));
    }
  };
  parts <= 1 ? some(0, parts) : at::parallel_for(0, parts, 1, some);
}

/// Sums of squares of a layer: of its weights, and of its update or its gradient.
using Squares = std::array<double, 2>;

/// Returns the sum of `fn(begin, count)` over parts. They are added in order, whatever the number of threads.
template <class Fn>
Squares sum_over_parts(int64_t count, const Fn& fn) {
  std::vector<Squares> parts(static_cast<size_t>((count + kGrain - 1) / kGrain));
  for_parts(count, [&](size_t part, int64_t begin, int64_t size) { parts[part] = fn(begin, size); });
  Squares sum{};
  for (const auto& part : parts) {
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  return sum;
}

steps::detail::FastaiRule loop_rule(Rule rule, const Numbers& n) {
  using steps::detail::FastaiRule;
  switch (rule) {
    case Rule::kRmsProp:
      return FastaiRule::kRmsProp;
    case Rule::kAdam:
      return FastaiRule::kAdam;
    case Rule::kRAdam:
      return n.rectifier == 0 ? FastaiRule::kRAdamEarly : n.beta != 0 ? FastaiRule::kRAdamSoftplus : FastaiRule::kRAdam;
    case Rule::kQHAdam:
      return FastaiRule::kQHAdam;
    default:
      return FastaiRule::kSgd;
  }
}

void loop(Rule rule, const Arrays& x, const Numbers& n, bool decoupled, From from = From::kFront) {
  const auto f = [](double value) { return static_cast<float>(value); };
  const steps::detail::FastaiFactors factors{.rule = loop_rule(rule, n),
                                             .averages = x.a != nullptr,
                                             .shrink = f(decoupled ? 1 - n.lr * n.wd : 1),
                                             .l2 = f(decoupled ? 0 : n.wd),
                                             .mom = f(n.mom),
                                             .damp = f(damps(rule) ? 1 - n.mom : 1),
                                             .sqr_mom = f(n.sqr_mom),
                                             .square_damp = f(1 - n.sqr_mom),
                                             .lr = f(n.lr),
                                             .eps = f(n.eps),
                                             .debias1 = f(n.debias1),
                                             .debias2 = f(n.debias2),
                                             .rectifier = f(n.rectifier),
                                             .beta = f(n.beta),
                                             .nu_1 = f(n.nu_1),
                                             .nu_2 = f(n.nu_2)};
  const auto& kernel = steps::detail::kernels(steps::best_instructions());
  for_parts(
      x.count,
      [&](size_t /*part*/, int64_t begin, int64_t count) {
        const auto part_of = [begin](auto* memory) { return memory == nullptr ? nullptr : memory + begin; };
        kernel.fastai({x.p + begin, x.g + begin, part_of(x.a), part_of(x.s), nullptr, count}, factors);
      },
      from);
}

/// LAMB with fastai's ratio: the update is not stored, but computed anew behind the norms.
void lamb_step(const Arrays& x, const Numbers& n, bool decoupled, int64_t step) {
  const steps::Lamb rule{.lr = n.lr,
                         .beta1 = n.mom,
                         .beta2 = n.sqr_mom,
                         .eps = n.eps,
                         .weight_decay = decoupled ? 0 : n.wd,
                         .step = step,
                         .adam_w_mode = false};
  const auto slice = [&](int64_t begin, int64_t count) {
    return steps::Slice{
        .count = count, .weight = x.p + begin, .gradient = x.g + begin, .states = {x.a + begin, x.s + begin}};
  };
  const auto [weights, updates] = sum_over_parts(x.count, [&](int64_t begin, int64_t count) {
    const auto sums = steps::lamb_moments(slice(begin, count), rule);
    return Squares{sums.weight_squares, sums.update_squares};
  });
  const bool has_ratio = weights > 0 && updates > 0;
  const double rate = n.lr * (has_ratio ? std::min(std::sqrt(weights / updates), 10.0) : 1.0);
  for_parts(
      x.count,
      [&](size_t /*part*/, int64_t begin, int64_t count) { steps::lamb_apply(slice(begin, count), rule, rate); },
      From::kBack);
}

/// LARC: the norms, then SGD with the layer's rate. `wd` is decoupled, and in the weights already.
void larc_step(const Arrays& x, const Numbers& n, double trust_coeff, bool clip) {
  const auto [weights, gradients] = sum_over_parts(x.count, [&](int64_t begin, int64_t count) {
    const auto squares = [&](const float* values) {
      return steps::sum_of_squares(values + begin, steps::Storage::kFloat32, count);
    };
    return Squares{squares(x.p), squares(x.g)};
  });
  const double weight_norm = std::sqrt(weights);
  Numbers own = n;
  own.lr = n.lr * trust_coeff * weight_norm / (std::sqrt(gradients) + weight_norm * n.wd + n.eps);
  if (clip) own.lr = std::min(own.lr, n.lr);
  own.wd = 0;
  loop(Rule::kSgd, x, own, /*decoupled=*/true, From::kBack);
}

/// The same subtrahend as operators, without Lamb's and Larc's rates of a layer.
at::Tensor change_by_operators(Rule rule, const Numbers& n, const at::Tensor& g, const at::Tensor& a,
                               const at::Tensor& s) {
  switch (rule) {
    case Rule::kSgd:
      return a * n.lr;
    case Rule::kRmsProp:
      return (a / s.sqrt().add_(n.eps)).mul_(n.lr);
    case Rule::kAdam:
      return (a / (s / n.debias2).sqrt_().add_(n.eps)).mul_(n.lr / n.debias1);
    case Rule::kQHAdam:
      return (g * (1 - n.nu_1) + a * (n.nu_1 / n.debias1))
          .div_((g * g * (1 - n.nu_2) + s * (n.nu_2 / n.debias2)).sqrt_().add_(n.eps))
          .mul_(n.lr);
    case Rule::kRAdam: {
      if (n.rectifier == 0) return a * (n.lr / n.debias1);
      auto d = (s / n.debias2).sqrt_();
      d = n.beta != 0 ? at::softplus(d, n.beta) : d.add_(n.eps);
      return (a / d).mul_(n.lr * n.rectifier / n.debias1);
    }
    default:
      return (a / n.debias1).div_((s / n.debias2).sqrt_().add_(n.eps));
  }
}

void require_at_least_0(const char* option, double value) {
  if (value >= 0) return;
  throw UsageError(Origin{"optim"}, "fastai optimizer: ", option, " ", value, "; expected at least 0.");
}

Factory factory(const Options& options, const Fixed& fixed) {
  return [=](const std::vector<torch::optim::OptimizerParamGroup>& groups, double lr) {
    return std::make_shared<Optimizer>(groups, Options(options).lr(lr), fixed);
  };
}

}  // namespace

void Options::serialize(torch::serialize::OutputArchive& archive) const {
  const std::pair<const char*, double> values[] = {{"lr", lr()},     {"mom", mom()},   {"sqr_mom", sqr_mom()},
                                                   {"eps", eps()},   {"wd", wd()},     {"beta", beta()},
                                                   {"nu_1", nu_1()}, {"nu_2", nu_2()}, {"trust_coeff", trust_coeff()}};
  for (const auto& [name, value] : values) archive.write(name, c10::IValue(value));
}

void Options::serialize(torch::serialize::InputArchive& archive) {
  const auto read = [&](const char* name) {
    c10::IValue value;
    archive.read(name, value);
    return value.toDouble();
  };
  lr(read("lr")).mom(read("mom")).sqr_mom(read("sqr_mom")).eps(read("eps")).wd(read("wd"));
  beta(read("beta")).nu_1(read("nu_1")).nu_2(read("nu_2")).trust_coeff(read("trust_coeff"));
}

void State::serialize(torch::serialize::OutputArchive& archive) const {
  archive.write("step", c10::IValue(step()));
  const std::pair<const char*, const at::Tensor*> tensors[] = {
      {"grad_avg", &grad_avg()}, {"sqr_avg", &sqr_avg()}, {"slow", &slow()}};
  for (const auto& [name, tensor] : tensors) {
    if (tensor->defined()) archive.write(name, *tensor, true);
  }
}

void State::serialize(torch::serialize::InputArchive& archive) {
  c10::IValue count;
  archive.read("step", count);
  step(count.toInt());
  // A handle each: reading into a defined tensor writes over it.
  at::Tensor grads, squares, slow_weights;
  if (archive.try_read("grad_avg", grads, true)) grad_avg(grads);
  if (archive.try_read("sqr_avg", squares, true)) sqr_avg(squares);
  if (archive.try_read("slow", slow_weights, true)) slow(slow_weights);
}

Optimizer::Optimizer(const std::vector<torch::optim::OptimizerParamGroup>& groups, Options defaults, const Fixed& fixed)
    : torch::optim::Optimizer(groups, std::make_unique<Options>(defaults)), fixed_(fixed) {
  require_at_least_0("lr", defaults.lr());
  require_at_least_0("eps", defaults.eps());
  require_at_least_0("wd", defaults.wd());
  if (fixed.lookahead_k < 0 || fixed.lookahead_alpha < 0 || fixed.lookahead_alpha > 1) {
    throw UsageError(Origin{"optim"}, "lookahead with k ", fixed.lookahead_k, " and alpha ", fixed.lookahead_alpha,
                     "; expected k above 0 and alpha in [0, 1].");
  }
}

at::Tensor Optimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_gradients(true);
    loss = closure();
  }
  const at::NoGradGuard no_grad;
  for (auto& group : param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    for (const auto& parameter : group.params()) {
      if (parameter.grad().defined()) step_one(options, parameter);
    }
  }
  return loss;
}

void Optimizer::step_one(const Options& options, const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (gradient.is_sparse()) {
    throw UsageError(
        Origin{"optim"}, "fastai optimizer: a parameter of shape ", parameter.sizes(),
        " has a sparse gradient; expected a dense one. Use torch::optim::SGD, or an embedding with sparse(false).");
  }
  auto& slot = state_[parameter.unsafeGetTensorImpl()];
  if (!slot) slot = std::make_unique<State>();
  auto& state = static_cast<State&>(*slot);
  const auto empty = [&] { return at::zeros_like(parameter, at::MemoryFormat::Preserve); };
  if (keeps_average(fixed_) && !state.grad_avg().defined()) state.grad_avg(empty());
  if (keeps_squares(fixed_.rule) && !state.sqr_avg().defined()) state.sqr_avg(empty());
  if (fixed_.lookahead_k > 0 && !state.slow().defined()) state.slow(parameter.detach().clone());
  state.step(state.step() + 1);
  const Numbers n = numbers_of(options, state.step());
  const bool has_kernel = fixed_.rule != Rule::kLarc || fixed_.decouple_wd || n.wd == 0;
  const bool loops = parameter.is_cpu() && parameter.scalar_type() == at::kFloat &&
                     gradient.scalar_type() == at::kFloat && parameter.is_contiguous() && gradient.is_contiguous() &&
                     has_kernel;
  if (loops) {
    const auto data = [](const at::Tensor& tensor) {
      return tensor.defined() ? tensor.mutable_data_ptr<float>() : nullptr;
    };
    const Arrays arrays{data(parameter), gradient.const_data_ptr<float>(), data(state.grad_avg()),
                        data(state.sqr_avg()), parameter.numel()};
    const bool by_layer = fixed_.rule == Rule::kLarc || fixed_.rule == Rule::kLamb;
    if (by_layer && n.wd != 0 && fixed_.decouple_wd) parameter.mul_(1 - n.lr * n.wd);
    if (fixed_.rule == Rule::kLarc) {
      larc_step(arrays, n, options.trust_coeff(), fixed_.clip);
    } else if (fixed_.rule == Rule::kLamb) {
      lamb_step(arrays, n, fixed_.decouple_wd, state.step());
    } else {
      loop(fixed_.rule, arrays, n, fixed_.decouple_wd);
    }
    compat::bump_version(parameter);
  } else {
    step_by_operators(options, n, parameter, state);
  }
  if (fixed_.lookahead_k > 0 && state.step() % fixed_.lookahead_k == 0) {
    state.slow().lerp_(parameter, fixed_.lookahead_alpha);
    parameter.copy_(state.slow());
  }
}

void Optimizer::step_by_operators(const Options& options, const Numbers& n, const at::Tensor& parameter, State& state) {
  at::Tensor g = parameter.grad();
  if (n.wd != 0) {
    if (fixed_.decouple_wd)
      parameter.mul_(1 - n.lr * n.wd);
    else
      g = g.add(parameter, n.wd);
  }
  at::Tensor a = g;
  if (state.grad_avg().defined()) a = state.grad_avg().mul_(n.mom).add_(g, damps(fixed_.rule) ? 1 - n.mom : 1.0);
  if (state.sqr_avg().defined()) state.sqr_avg().mul_(n.sqr_mom).addcmul_(g, g, 1 - n.sqr_mom);
  if (fixed_.rule == Rule::kLarc) {
    // Norms stay on the device, so that nothing waits for them.
    const auto weight_norm = parameter.norm();
    auto rate = weight_norm * (n.lr * options.trust_coeff()) / (g.norm() + weight_norm * n.wd + n.eps);
    if (fixed_.clip) rate.clamp_max_(n.lr);
    parameter.sub_(a * rate);
    return;
  }
  const auto update = change_by_operators(fixed_.rule, n, g, a, state.sqr_avg());
  if (fixed_.rule == Rule::kLamb) {
    const auto r1 = parameter.pow(2).mean().sqrt_(), r2 = update.pow(2).mean().sqrt_();
    const auto ratio = at::where((r1 > 0).logical_and(r2 > 0), (r1 / r2).clamp_max(10), at::ones_like(r1));
    update.mul_(ratio * n.lr);
  }
  parameter.sub_(update);
}

void Optimizer::save(torch::serialize::OutputArchive& archive) const {
  torch::optim::serialize<State, Options>(archive, *this);
}
void Optimizer::load(torch::serialize::InputArchive& archive) {
  torch::optim::serialize<State, Options>(archive, *this);
}

Factory sgd(const SgdOptions& o) {
  return factory(Options().mom(o.mom).wd(o.wd),
                 {.rule = Rule::kSgd, .momentum = o.mom != 0, .decouple_wd = o.decouple_wd});
}

Factory rms_prop(const RmsPropOptions& o) {
  return factory(Options().mom(o.mom).sqr_mom(o.sqr_mom).wd(o.wd).eps(o.eps),
                 {.rule = Rule::kRmsProp, .momentum = o.mom != 0, .decouple_wd = o.decouple_wd});
}

namespace {

/// fastai::adam, which lookahead can take apart.
struct AdamFactory {
  AdamOptions o;
  std::shared_ptr<torch::optim::Optimizer> operator()(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                                      double lr) const {
    if (o.decouple_wd) {
      return std::make_shared<torch::optim::AdamW>(
          groups, torch::optim::AdamWOptions(lr).betas({o.mom, o.sqr_mom}).eps(o.eps).weight_decay(o.wd));
    }
    return std::make_shared<torch::optim::Adam>(
        groups, torch::optim::AdamOptions(lr).betas({o.mom, o.sqr_mom}).eps(o.eps).weight_decay(o.wd));
  }
};

}  // namespace

Factory adam(const AdamOptions& o) {
  return AdamFactory{o};
}

Factory radam(const RAdamOptions& o) {
  return factory(Options().mom(o.mom).sqr_mom(o.sqr_mom).eps(o.eps).wd(o.wd).beta(o.beta),
                 {.rule = Rule::kRAdam, .decouple_wd = o.decouple_wd});
}

Factory qhadam(const QHAdamOptions& o) {
  return factory(Options().mom(o.mom).sqr_mom(o.sqr_mom).nu_1(o.nu_1).nu_2(o.nu_2).eps(o.eps).wd(o.wd),
                 {.rule = Rule::kQHAdam, .decouple_wd = o.decouple_wd});
}

Factory larc(const LarcOptions& o) {
  return factory(Options().mom(o.mom).trust_coeff(o.trust_coeff).eps(o.eps).wd(o.wd),
                 {.rule = Rule::kLarc, .momentum = o.mom != 0, .decouple_wd = o.decouple_wd, .clip = o.clip});
}

Factory lamb(const LambOptions& o) {
  return factory(Options().mom(o.mom).sqr_mom(o.sqr_mom).eps(o.eps).wd(o.wd),
                 {.rule = Rule::kLamb, .decouple_wd = o.decouple_wd});
}

Factory lookahead(const Factory& inner, const LookaheadOptions& options) {
  return [=](const std::vector<torch::optim::OptimizerParamGroup>& groups,
             double lr) -> std::shared_ptr<torch::optim::Optimizer> {
    if (options.k < 1) {
      throw UsageError(Origin{"optim"}, "lookahead with k ", options.k, "; expected at least 1 step between updates.");
    }
    if (const auto* adam = inner.target<AdamFactory>()) {
      const auto& o = adam->o;
      return std::make_shared<Optimizer>(groups, Options(lr).mom(o.mom).sqr_mom(o.sqr_mom).eps(o.eps).wd(o.wd),
                                         Fixed{.rule = Rule::kAdam,
                                               .decouple_wd = o.decouple_wd,
                                               .lookahead_k = options.k,
                                               .lookahead_alpha = options.alpha});
    }
    const auto made = inner(groups, lr);
    const auto* known = dynamic_cast<const Optimizer*>(made.get());
    if (known == nullptr) {
      throw UsageError(Origin{"optim"},
                       "lookahead takes the optimizers of optim::fastai only; expected sgd, rms_prop, adam, radam, "
                       "qhadam, larc or lamb.");
    }
    Fixed fixed = known->fixed();
    fixed.lookahead_k = options.k;
    fixed.lookahead_alpha = options.alpha;
    return std::make_shared<Optimizer>(groups, static_cast<const Options&>(known->defaults()), fixed);
  };
}

Factory ranger(const RangerOptions& o) {
  return lookahead(
      radam(
          {.mom = o.mom, .sqr_mom = o.sqr_mom, .eps = o.eps, .wd = o.wd, .beta = o.beta, .decouple_wd = o.decouple_wd}),
      o.lookahead);
}

}  // namespace hasten::optim::fastai
