// Memory that a step of GPT-2 takes on a CPU, beside what the plan predicts of it.
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <memory>

#include "hasten/accelerator.h"
#include "hasten/models/gpt2.h"
#include "hasten/plan/cluster.h"
#include "hasten/plan/step_memory.h"
#include "hasten/plan/strategy.h"

namespace hasten {
namespace {

constexpr int64_t kBatch = 8, kSequence = 64, kLayers = 6, kHidden = 64, kVocabulary = 512;

/// Bytes of tensors that this thread has allocated and not freed while it is on.
class HeldBytes {
 public:
  int64_t now() const { return counter_->bytes; }

 private:
  struct Counter : c10::MemoryReportingInfoBase {
    void reportMemoryUsage(void* /*memory*/, int64_t size, size_t /*allocated*/, size_t /*reserved*/,
                           c10::Device /*device*/) override {
      bytes += size;
    }
    bool memoryProfilingEnabled() const override { return true; }
    int64_t bytes = 0;
  };
  std::shared_ptr<Counter> counter_ = std::make_shared<Counter>();
  c10::DebugInfoGuard guard_{c10::DebugInfoKind::PROFILER_STATE, counter_};
};

models::Gpt2 small_gpt2() {
  torch::manual_seed(1);
  return models::Gpt2(models::Gpt2Config{
      .vocab_size = kVocabulary, .n_positions = kSequence, .n_embd = kHidden, .n_layer = kLayers, .n_head = 4});
}

plan::StepMemory predicted(plan::Recompute recompute) {
  const plan::ModelShape shape = {.name = "small",
                                  .layers = kLayers,
                                  .hidden = kHidden,
                                  .heads = 4,
                                  .kv_heads = 4,
                                  .head_dim = kHidden / 4,
                                  .ffn = 4 * kHidden,
                                  .vocabulary = kVocabulary,
                                  .sequence = kSequence,
                                  .tied = true};
  plan::Strategy strategy;
  plan::set_precision(strategy, "no");
  strategy.recompute = recompute;
  strategy.batch = strategy.micro_batch = kBatch;
  return plan::step_memory(shape, plan::preset_cluster("cpu"), strategy);
}

/// Bytes that a forward leaves for its backward, and those of a step's state, of which gradients are a part.
struct Measured {
  double activations = 0, state = 0;
};

Measured measured(bool recompute) {
  torch::set_num_threads(1);
  const HeldBytes held;
  Accelerator accelerator(AcceleratorOptions{.cpu = true, .recompute = {.enabled = recompute}});
  auto net = small_gpt2();
  torch::optim::AdamW adam(net->parameters(), 1e-3);
  auto [model, optimizer] = accelerator.prepare(net, adam);
  const at::Tensor ids = torch::randint(kVocabulary, {kBatch, kSequence}, torch::kLong);
  Measured result;
  for (int step = 0; step < 2; ++step) {
    optimizer.zero_grad();
    const int64_t before = held.now();
    {
      const at::Tensor logits = model(ids, at::Tensor(), nullptr).view({-1, kVocabulary});
      const at::Tensor loss = torch::nn::functional::cross_entropy(logits, ids.view({-1}));
      result.activations = static_cast<double>(held.now() - before);
      accelerator.backward(loss);
    }
    optimizer.step();
  }
  result.state = static_cast<double>(held.now() - static_cast<int64_t>(ids.nbytes()));
  return result;
}

void expect_near(double value, double wanted, double share, const char* what) {
  EXPECT_NEAR(value / wanted, 1, share) << what << ": " << value << " bytes, predicted " << wanted;
}

TEST(PlanMemory, ActivationsOfATransformerAreWhatAutogradHolds) {
  for (const auto recompute : {plan::Recompute::kNone, plan::Recompute::kFull}) {
    const bool is_full = recompute == plan::Recompute::kFull;
    const auto memory = predicted(recompute);
    // A layer's own come in backward only, where it is computed again.
    const double of_a_layer = is_full ? predicted(plan::Recompute::kNone).activations / kLayers : 0;

    expect_near(measured(is_full).activations, memory.activations - of_a_layer + memory.logits, 0.15,
                is_full ? "recompute" : "all kept");
  }
}

TEST(PlanMemory, StateOfATrainingIsWhatItsTensorsTake) {
  const auto memory = predicted(plan::Recompute::kNone);

  expect_near(measured(false).state, memory.weights + memory.gradients + memory.optimizer, 0.05, "state");
}

}  // namespace
}  // namespace hasten
