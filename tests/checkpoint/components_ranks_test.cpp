// Components that hand over their state in boxes: what tensor and pipeline parallelism save and load.
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "hasten/accelerator.h"
#include "hasten/checkpoint/checkpoints.h"
#include "hasten/training/named_state.h"
#include "support/folder.h"
#include "support/ranks.h"

namespace hasten {
namespace {

using testing::run_ranks;

class ComponentsRanks : public testing::InFolder {};

// A tensor [12] in equal parts, one a rank: what tensor parallelism hands over.
struct Parts {
  Parts(int rank, int world, float base)
      : begin(12 / world * rank), own(at::arange(begin, begin + 12 / world).to(at::kFloat) + base) {}
  training::NamedStateful component() {
    return {"parts",
            [this] {
              training::Piece piece{{"w", files::Dtype::kFloat32, {12}}, {{begin}, {own.size(0)}}, own};
              return training::NamedState{{piece}, core::Value::map({{"axis", "tp"}})};
            },
            [this](const training::NamedState& state) { own.copy_(state.pieces.at(0).data); }};
  }
  int64_t begin;
  at::Tensor own;
};

TEST_F(ComponentsRanks, ComponentsHandOverBoxesAndGetThoseOfTheirOwnLayout) {
  for (const int world : {3, 2}) {
    run_ranks(world, [&](auto& process) {
      Accelerator accelerator(process, AcceleratorOptions{.tune_allocator = false});
      Parts parts(process.rank(), world, world == 3 ? 100.F : 0.F);
      accelerator.checkpoints().add_component(parts.component());
      if (world == 3) {
        accelerator.save_state(path("parts"));
      } else {
        accelerator.load_state(path("parts"));
        EXPECT_TRUE(parts.own.equal(at::arange(parts.begin, parts.begin + 6).to(at::kFloat) + 100));
      }
      EXPECT_THROW(accelerator.checkpoints().add_component(parts.component()), UsageError);
      process.wait_for_everyone();
    });
  }
}

}  // namespace
}  // namespace hasten
