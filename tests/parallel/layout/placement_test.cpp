// Boxes of parts cover a whole tensor once, wherever blocks and parts end.
#include "hasten/parallel/layout/placement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

namespace hasten::parallel {
namespace {

// Fills a tensor with the parts of all ranks, by their boxes.
at::Tensor joined(const at::Tensor& whole, const Cut& cut, int num_parts, int64_t rows_a_box) {
  at::Tensor out = at::full_like(whole, -1);
  for (int part = 0; part < num_parts; ++part) {
    const at::Tensor own = cut_tensor(whole, cut, num_parts, part);
    for (int64_t row = 0; row < own.size(0); row += rows_a_box) {
      auto sizes = own.sizes().vec();
      sizes[0] = std::min(rows_a_box, own.size(0) - row);
      const files::Box box{{row, 0}, sizes};
      const at::Tensor values = own.narrow(0, row, sizes[0]);
      for (const auto& [of_whole, in_part] : part_boxes(Placement{whole.sizes().vec(), cut}, num_parts, part, box)) {
        at::Tensor from = values, to = out;
        for (size_t d = 0; d < 2; ++d) {
          from = from.narrow(static_cast<int64_t>(d), in_part.offset[d], in_part.size[d]);
          to = to.narrow(static_cast<int64_t>(d), of_whole.offset[d], of_whole.size[d]);
        }
        EXPECT_TRUE(to.eq(-1).all().item<bool>()) << "covered twice";
        to.copy_(from);
      }
    }
  }
  return out;
}

TEST(PartBoxes, CoverTheWholeOnce) {
  for (const int64_t size : {1, 5, 12, 97}) {
    for (const int64_t blocks : {1, 3}) {
      for (const int64_t dim : {0, 1}) {
        if (size % blocks != 0) continue;
        const std::vector<int64_t> sizes = dim == 0 ? std::vector<int64_t>{size, 4} : std::vector<int64_t>{4, size};
        const at::Tensor whole = at::arange(size * 4).view(sizes);
        for (const int parts : {2, 3, 4}) {
          for (const int64_t rows : {1, 3, 100}) {
            EXPECT_TRUE(joined(whole, {dim, blocks}, parts, rows).equal(whole))
                << size << " in " << blocks << " along " << dim << " on " << parts;
          }
        }
      }
    }
  }
}

TEST(PartBoxes, OfAWholeParameterAreItsOwn) {
  const at::Tensor parameter = at::ones({3, 2});
  const files::Box box{{1, 0}, {2, 2}};

  const auto boxes = part_boxes(parameter, box);

  ASSERT_EQ(boxes.size(), 1U);
  EXPECT_EQ(boxes[0].whole, box);
  EXPECT_EQ(boxes[0].in_part, (files::Box{{0, 0}, {2, 2}}));
  EXPECT_TRUE(part_boxes(parameter, {{1, 0}, {0, 2}}).empty());
}

}  // namespace
}  // namespace hasten::parallel
