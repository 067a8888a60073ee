// plan_report: the model, layout and batch that are counted, and the times that are measured.
#include "hasten/accelerator/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/core/error.h"
#include "hasten/data/dataset/tensor_dataset.h"
#include "support/models.h"

namespace hasten {
namespace {

using ::testing::HasSubstr;

TEST(PlanReport, CountsTheModelTheBatchAndTheStepsBehindTheFirstTwo) {
  const Accelerator accelerator;
  testing::Mlp net;
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  auto loader = accelerator.data_loader(data::TensorDataset(torch::randn({40, 8})), 4);
  EXPECT_THROW(plan_report(accelerator, *net, optimizer), UsageError);
  for (const auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(model(batch).square().mean());
    optimizer.step();
  }

  const auto report = plan_report(accelerator, *net, optimizer, {.optimizer_bytes = 0});

  EXPECT_EQ(report.measured.num_steps, 8);
  EXPECT_EQ(report.measured.samples, 4);
  EXPECT_GT(report.measured.backward_s, 0);
  EXPECT_EQ(report.strategy.batch, 4);
  EXPECT_EQ(report.strategy.sizes, plan::LayoutSizes{});
  EXPECT_EQ(report.model.parameters(), 8 * 16 + 16 + 16 * 4 + 4);
  EXPECT_GT(report.predicted.seconds.total(), 0);
  EXPECT_THAT(report.text(), HasSubstr("beside the mean of 8 steps"));
}

}  // namespace
}  // namespace hasten
