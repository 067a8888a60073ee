// A program that sets the user's locale: digits in groups, a decimal comma. Names of folders and numbers in files keep
// their form, so that a run finds its checkpoints.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <locale>

#include "hasten/accelerator.h"
#include "hasten/checkpoint/weights.h"
#include "support/folder.h"
#include "support/models.h"
#include "support/ranks.h"

namespace hasten {
namespace {

struct CommaAndGroups : std::numpunct<char> {
  char do_decimal_point() const override { return ','; }
  char do_thousands_sep() const override { return '.'; }
  std::string do_grouping() const override { return "\3"; }
};

class UsersLocale : public testing::InFolder {
 protected:
  UsersLocale() : before_(std::locale::global(std::locale(std::locale::classic(), new CommaAndGroups))) {}
  ~UsersLocale() override { std::locale::global(before_); }

 private:
  std::locale before_;
};

TEST_F(UsersLocale, CheckpointsAreFoundAgainUnderTheirNumbers) {
  testing::run_ranks(2, [&](auto& process) {
    const Accelerator accelerator(
        process, {.tune_allocator = false,
                  .project = {.project_dir = path("run"), .automatic_checkpoint_naming = true, .iteration = 1234}});
    testing::Mlp net;
    testing::initialise(*net, 5);
    torch::optim::SGD sgd(net->parameters(), 0.25);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(testing::problem_for("mlp", 1).inputs).square().mean());
    optimizer.step();
    const at::Tensor trained = net->parameters()[0].detach().clone();

    accelerator.save_state().wait();
    accelerator.wait_for_everyone();
    EXPECT_TRUE(std::filesystem::exists(path("run/checkpoints/checkpoint_1234")));
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net->parameters()) parameter.zero_();
    }
    const auto loaded = accelerator.resume();

    ASSERT_TRUE(loaded.has_value());
    EXPECT_EQ(loaded->iteration, 1235);
    EXPECT_TRUE(net->parameters()[0].equal(trained));
  });
}

TEST_F(UsersLocale, SizesOfShardsAndTheirIndexAreRead) {
  testing::Mlp net, other;
  testing::initialise(*net, 5);

  checkpoint::save_model(checkpoint::state_dict(*net), path("weights"), {.max_shard_size = "0.5KB"});
  checkpoint::load_weights(*other, path("weights"));

  EXPECT_TRUE(std::filesystem::exists(path("weights/model.safetensors.index.json")));
  EXPECT_TRUE(other->parameters()[0].equal(net->parameters()[0]));
}

}  // namespace
}  // namespace hasten
