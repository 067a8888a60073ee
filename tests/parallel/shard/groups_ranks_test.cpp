// ShardOptions::shard_over: state is split over the ranks of one axis, and replicated over the others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/parallel/shard/prepare_sharding.h"
#include "parallel/shard/trained.h"

namespace hasten::parallel {
namespace {

using namespace shard_testing;
using ::testing::Each;
using ::testing::HasSubstr;

ShardOptions grouped(ShardStage stage, std::vector<comm::MeshAxis> mesh = {{"replicate", -1}, {"shard", 2}}) {
  auto options = small_units(stage);
  options.shard_over = "shard";
  options.mesh = std::move(mesh);
  return options;
}

// Sums of two groups round otherwise than those of all ranks in a row.
void expect_close(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b, const std::string& what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::allclose(a[i], b[i], 1e-4, 1e-5))
        << what << ", parameter " << i << ", off by " << (a[i] - b[i]).abs().max().item<float>();
  }
}

int64_t state_numel(const Trained<testing::Mlp>& trained) {
  int64_t sum = 0;
  for (const auto& piece : trained.sharding->sharded_state(*trained.optimizer)) sum += piece.tensor.numel();
  return sum;
}

TEST(ShardGroups, GiveTheNumbersOfDdp) {
  run_ranks(4, [](auto& process) {
    Trained<testing::Mlp> plain(process.group(), {}, adamw);
    train(plain, "mlp");
    for (const ShardStage stage : kStages) {
      for (const auto& mesh : {std::vector<comm::MeshAxis>{{"replicate", -1}, {"shard", 2}},
                               std::vector<comm::MeshAxis>{{"shard", 2}, {"replicate", 2}}}) {
        Trained<testing::Mlp> sharded(process.group(), grouped(stage, mesh), adamw);
        train(sharded, "mlp");
        expect_close(plain.parameters(), sharded.parameters(), text("stage ", static_cast<int>(stage)));
        for (const auto& parameter : sharded.parameters()) {
          for (const auto& other : process.group().all_gather(parameter)) EXPECT_TRUE(at::equal(parameter, other));
        }
        process.group().barrier();
      }
    }
  });
}

TEST(ShardGroups, SplitStateOverOneAxisAlone) {
  run_ranks(4, [](auto& process) {
    Trained<testing::Mlp> all(process.group(), small_units(ShardStage::kGradients), adamw);
    Trained<testing::Mlp> pairs(process.group(), grouped(ShardStage::kGradients), adamw);
    train(all, "mlp", 1);
    train(pairs, "mlp", 1);
    const auto sum = [&](int64_t mine) {
      at::Tensor value = torch::tensor(mine);
      process.group().all_reduce_(value);
      return value.template item<int64_t>();
    };

    EXPECT_EQ(sum(state_numel(pairs)), 2 * sum(state_numel(all)));
    EXPECT_EQ(pairs.sharding->is_copy(), process.rank() >= 2);
    EXPECT_FALSE(all.sharding->is_copy());
  });
}

TEST(ShardGroups, WholeStateAndNormsAreThoseOfDdp) {
  run_ranks(4, [](auto& process) {
    Trained<testing::Mlp> plain(process.group(), {}, adamw);
    Trained<testing::Mlp> sharded(process.group(), grouped(ShardStage::kParameters), adamw);
    for (auto* trained : {&plain, &sharded}) train(*trained, "mlp", 2);
    plain.backward(plain.loss("mlp", 9));
    sharded.backward(sharded.loss("mlp", 9));
    const double norm = torch::nn::utils::clip_grad_norm_(plain.net->parameters(), 0.01);

    EXPECT_NEAR(sharded.sharding->clip_grad_norm_(sharded.net->parameters(), 0.01), norm, 1e-4 * norm);
    for (const auto& piece : sharded.sharding->full_state(*sharded.optimizer)) {
      if (piece.name != "exp_avg") continue;
      const auto names = sharded.net->named_parameters();
      const auto index = std::distance(names.begin(), std::find_if(names.begin(), names.end(), [&](auto& item) {
                                         return item.key() == piece.parameter;
                                       }));
      auto& state = plain.optimizer->state().at(plain.net->parameters()[index].unsafeGetTensorImpl());
      EXPECT_TRUE(
          at::allclose(piece.tensor.cpu(), static_cast<torch::optim::AdamWParamState&>(*state).exp_avg(), 1e-4, 1e-5))
          << piece.parameter;
    }
    process.group().barrier();
  });
}

// Each group lies on one host, so nothing of the parameters is sent between hosts.
TEST(ShardGroups, MayBeHosts) {
  const auto hosts = [](int rank, comm::GroupOptions& options) {
    options.host = rank < 2 ? "a" : "b";
    options.address = "127.0.0.1";
  };
  run_ranks(4,
            [](auto& process) {
              Trained<testing::Mlp> plain(process.group(), {}, adamw);
              train(plain, "mlp", 4);
              for (const ShardStage stage : kStages) {
                Trained<testing::Mlp> sharded(process.group(), grouped(stage), adamw);
                train(sharded, "mlp", 4);
                expect_close(plain.parameters(), sharded.parameters(), "hosts");
                EXPECT_EQ(sharded.sharding->unit_counts().pulled_bytes, 0);
                process.group().barrier();
              }
            },
            {.adjust = hosts});
}

TEST(ShardGroups, ThatLieOnTwoHostsPullFromEachOther) {
  const auto hosts = [](int rank, comm::GroupOptions& options) {
    options.host = rank % 2 == 0 ? "a" : "b";
    options.address = "127.0.0.1";
  };
  run_ranks(4,
            [](auto& process) {
              Trained<testing::Mlp> plain(process.group(), {}, adamw);
              Trained<testing::Mlp> sharded(process.group(), grouped(ShardStage::kParameters), adamw);
              train(plain, "mlp", 4);
              train(sharded, "mlp", 4);
              expect_close(plain.parameters(), sharded.parameters(), "hosts");
              EXPECT_GT(sharded.sharding->unit_counts().pulled_bytes, 0);
              process.group().barrier();
            },
            {.adjust = hosts});
}

TEST(ShardGroups, NeedAGridOfAllRanksWithThatAxis) {
  const auto words_for = [](const std::string& axis, std::vector<comm::MeshAxis> mesh) {
    return run_ranks_collecting(2, [&](auto& process) {
      auto options = grouped(ShardStage::kGradients, mesh);
      options.shard_over = axis;
      Trained<testing::Mlp> sharded(process.group(), options, adamw);
    });
  };

  EXPECT_THAT(words_for("shard", {}), Each(HasSubstr("ShardOptions::mesh has no axes")));
  EXPECT_THAT(words_for("shart", {{"replicate", 1}, {"shard", 2}}), Each(HasSubstr("shart")));
  EXPECT_THAT(words_for("shard", {{"replicate", 3}, {"shard", 2}}), Each(HasSubstr("6")));
}

}  // namespace
}  // namespace hasten::parallel
