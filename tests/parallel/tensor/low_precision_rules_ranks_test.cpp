// Types of values in half precision: what ranks compute of parts has the type that one process gives.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "parallel/tensor/exchange.h"
#include "parallel/tensor/handler.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using at::Reduction::Mean;
using at::Reduction::None;
using at::Reduction::Sum;

using ScoredOperator = std::function<at::Tensor(const at::Tensor& scores, const at::Tensor& targets)>;

std::vector<std::pair<std::string, ScoredOperator>> scored_operators() {
  using at::Tensor;
  std::vector<std::pair<std::string, ScoredOperator>> all = {
      {"softmax", [](const Tensor& x, const Tensor&) { return x.softmax(1); }},
      {"log_softmax", [](const Tensor& x, const Tensor&) { return x.log_softmax(1); }},
      {"sum", [](const Tensor& x, const Tensor&) { return x.sum(1); }},
      {"mean", [](const Tensor& x, const Tensor&) { return x.mean(); }},
      {"var", [](const Tensor& x, const Tensor&) { return x.var(1); }},
      {"norm", [](const Tensor& x, const Tensor&) { return x.norm(2); }},
      {"logsumexp", [](const Tensor& x, const Tensor&) { return x.logsumexp(1); }},
      {"cumsum", [](const Tensor& x, const Tensor&) { return x.cumsum(1); }},
      {"layer_norm", [](const Tensor& x, const Tensor&) { return at::layer_norm(x, {x.size(1)}); }},
      {"matmul", [](const Tensor& x, const Tensor&) { return x.matmul(x.t()); }},
      {"softmax in float32", [](const Tensor& x, const Tensor&) { return x.softmax(1, at::kFloat); }},
      {"cross_entropy with smoothing",
       [](const Tensor& x, const Tensor& target) { return at::cross_entropy_loss(x, target, {}, Mean, -100, 0.1); }}};
  for (const auto reduction : {None, Mean, Sum}) {
    const std::string of = " of reduction " + std::to_string(reduction);
    all.emplace_back("cross_entropy" + of, [reduction](const Tensor& x, const Tensor& target) {
      return at::cross_entropy_loss(x, target, {}, reduction);
    });
    all.emplace_back("nll_loss" + of, [reduction](const Tensor& x, const Tensor& target) {
      return at::nll_loss_nd(x.log_softmax(1), target, {}, reduction);
    });
    all.emplace_back("mse_loss" + of, [reduction](const Tensor& x, const Tensor&) {
      return at::mse_loss(x, at::ones({6, 8}, x.options()), reduction);
    });
  }
  return all;
}

TEST(LowPrecisionRules, GiveTheTypeThatOneProcessGives) {
  const at::Tensor scores = at::arange(48).sin().view({6, 8}), targets = at::arange(6);

  testing::run_ranks(2, [&](process::Process& process) {
    const auto axis = tensor::make_axis(process.group(), {});
    const tensor::ForwardScope scope;
    for (const auto type : {at::kBFloat16, at::kHalf}) {
      const at::Tensor whole = scores.to(type);
      for (const int64_t dim : {0, 1}) {
        const tensor::Exchange slice{tensor::ExchangeKind::kSlice, {dim, 1}, whole.size(dim)};
        const at::Tensor cut = axis->wrap(tensor::exchange(*axis, whole, slice), {dim, 1}, whole.size(dim));
        for (const auto& [name, apply] : scored_operators()) {
          EXPECT_EQ(apply(cut, targets).scalar_type(), apply(whole, targets).scalar_type())
              << name << " of " << type << " cut along " << dim << " on rank " << process.rank();
        }
      }
    }
  });
}

}  // namespace
}  // namespace hasten::parallel
