// The norm of gradients whose parameters are cut is that of the whole ones.
#include "hasten/parallel/tensor/clip_parts.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>

#include "hasten/parallel/layout/placement.h"
#include "hasten/parallel/tensor/tensor_parallel.h"
#include "support/parallel_models.h"
#include "support/ranks.h"

namespace hasten::parallel {
namespace {

using namespace hasten::testing;

TEST(ClipParts, CountsEachElementOfEachParameterOnce) {
  const auto model = gpt2_model();
  const auto batch = parallel_batch();
  std::vector<std::shared_ptr<torch::nn::Module>> nets;
  for (int i = 0; i < 3; ++i) {
    torch::manual_seed(0);
    nets.push_back(model.make());
  }
  model.loss(*nets[2], batch.x, batch.y).backward();
  const double wanted = torch::nn::utils::clip_grad_norm_(nets[2]->parameters(), 0.1);
  const auto expected = nets[2]->named_parameters();
  run_ranks(2, [&](process::Process& process) {
    auto& net = *nets[static_cast<size_t>(process.rank())];
    const ClipParts parts{process.group(), Layout(process, {.tp = 2})};
    const TensorParallel cut(net, parts.layout.tensor());
    model.loss(net, batch.x, batch.y).backward();
    EXPECT_TRUE(has_finite_gradients(parts, net.parameters()));
    EXPECT_NEAR(clip_grad_norm_(parts, net.parameters(), 0.1, 2.0), wanted, 1e-5 * wanted);
    for (const auto& item : net.named_parameters()) {
      at::Tensor own = expected[item.key()].grad();
      if (const auto* placed = placed_by(item.value())) {
        own = cut_tensor(own, placed->placement(item.value())->cut, 2, process.rank());
      }
      EXPECT_TRUE(at::allclose(item.value().grad(), own, 1e-4, 1e-7)) << item.key();
    }
    // Infinity in one part alone: all ranks see it.
    const auto first = net.parameters().front();
    if (process.rank() == 1) first.grad().view(-1)[0] = INFINITY;
    EXPECT_FALSE(has_finite_gradients(parts, net.parameters()));
  });
}

}  // namespace
}  // namespace hasten::parallel
