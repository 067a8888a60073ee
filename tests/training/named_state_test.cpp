// State by names and boxes: the pieces of all ranks put a tensor together again.
#include "hasten/training/named_state.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

namespace hasten::training {
namespace {

TEST(NamedState, FlatSlicesOfSeveralRanksCoverTheTensor) {
  const std::vector<int64_t> shape{4, 3};
  const at::Tensor whole = at::arange(12).to(at::kFloat);
  const at::Tensor rebuilt = at::zeros(shape);

  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{0, 5}, {5, 7}, {7, 12}}) {
    NamedState state;
    int64_t at = begin;
    for (const auto& box : files::boxes_of_range(shape, begin, end)) {
      const int64_t count = files::numel_of(box);
      state.pieces.push_back({{"w", files::Dtype::kFloat32, shape}, box, whole.narrow(0, at, count).view(box.size)});
      at += count;
    }
    for (const auto& piece : state.pieces) {
      at::Tensor part = rebuilt;
      for (size_t d = 0; d < shape.size(); ++d)
        part = part.narrow(static_cast<int64_t>(d), piece.box.offset[d], piece.box.size[d]);
      part.copy_(piece.data);
    }
  }

  EXPECT_TRUE(rebuilt.view(-1).equal(whole));
}

}  // namespace
}  // namespace hasten::training
