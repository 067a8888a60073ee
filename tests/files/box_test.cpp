// Boxes of flat ranges, copies between boxes, casts and dtypes' names.
#include "hasten/files/base/box.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>

#include "hasten/core/error.h"
#include "hasten/files/base/cast.h"
#include "hasten/files/base/dtype.h"
#include "hasten/files/base/tensor_source.h"

namespace hasten::files {
namespace {

std::vector<std::vector<int64_t>> small_shapes() {
  std::vector<std::vector<int64_t>> shapes{{}};
  for (size_t done = 0; done < shapes.size(); ++done) {
    if (shapes[done].size() == 4) continue;
    for (int64_t size = 1; size <= 3; ++size) {
      auto shape = shapes[done];
      shape.push_back(size);
      shapes.push_back(shape);
    }
  }
  return shapes;
}

TEST(Box, EveryRangeOfEverySmallShapeIsFewContiguousBoxesInOrder) {
  for (const auto& shape : small_shapes()) {
    const int64_t numel = numel_of(shape);
    for (int64_t begin = 0; begin <= numel; ++begin) {
      for (int64_t end = begin; end <= numel; ++end) {
        const auto boxes = boxes_of_range(shape, begin, end);
        ASSERT_LE(boxes.size(), std::max<size_t>(2 * shape.size(), 2) - 1);
        int64_t at = begin;
        for (const Box& box : boxes) {
          ASSERT_TRUE(fits(box, shape));
          std::vector<files::Run> runs;
          for_each_run(shape, box, [&](files::Run run) { runs.push_back(run); });
          ASSERT_EQ(runs, (std::vector<files::Run>{{at, numel_of(box)}}));
          at += numel_of(box);
        }
        ASSERT_EQ(at, end);
      }
    }
  }
}

TEST(Box, RangesOutsideTheTensorAreRefused) {
  EXPECT_THROW(boxes_of_range(std::vector<int64_t>{2, 3}, 4, 7), UsageError);
  EXPECT_THROW(boxes_of_range(std::vector<int64_t>{2, 3}, 3, 2), UsageError);
  EXPECT_THROW(numel_of(std::vector<int64_t>{1LL << 32, 1LL << 32}), UsageError);
  EXPECT_THROW(bytes_of(TensorInfo{.name = "t", .dtype = Dtype::kFloat64, .shape = {1LL << 62}}), UsageError);
}

TEST(Box, IntersectionsHaveTheirOwnCoordinates) {
  const Box a{{0, 2}, {4, 4}}, b{{3, 0}, {5, 3}};

  EXPECT_EQ(intersection(a, b), (Box{{3, 2}, {1, 1}}));
  EXPECT_EQ(intersection(a, Box{{4, 2}, {1, 1}}), std::nullopt);
  EXPECT_EQ(intersection(Box{}, Box{}), Box{});
  EXPECT_EQ(describe(a), "[0:4, 2:6]");
}

/// Cuts a box into random parts along random axes.
void cut(const Box& box, std::mt19937& random, int depth, std::vector<Box>& parts) {
  std::vector<size_t> axes;
  for (size_t d = 0; d < box.size.size(); ++d) {
    if (box.size[d] > 1) axes.push_back(d);
  }
  if (depth == 0 || axes.empty()) {
    parts.push_back(box);
    return;
  }
  const size_t axis = axes[random() % axes.size()];
  const int64_t at = 1 + static_cast<int64_t>(random() % static_cast<uint64_t>(box.size[axis] - 1));
  Box low = box, high = box;
  low.size[axis] = at;
  high.offset[axis] += at;
  high.size[axis] -= at;
  cut(low, random, depth - 1, parts);
  cut(high, random, depth - 1, parts);
}

TEST(Box, AnyPartitionReadThroughAnyOtherGivesTheSameElements) {
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::mt19937 random(seed);
    std::vector<int64_t> shape(1 + random() % 4);
    for (int64_t& size : shape) size = 1 + static_cast<int64_t>(random() % 5);
    std::vector<int32_t> whole(static_cast<size_t>(numel_of(shape))), back(whole.size(), -1);
    std::iota(whole.begin(), whole.end(), 0);
    std::vector<Box> written, read;
    cut(whole_box(shape), random, 4, written);
    cut(whole_box(shape), random, 4, read);
    std::vector<std::vector<int32_t>> stored;
    for (const Box& box : written) {
      stored.emplace_back(static_cast<size_t>(numel_of(box)));
      copy_common(whole.data(), whole_box(shape), stored.back().data(), box, 4);
    }
    int64_t copied = 0;
    for (const Box& box : read) {
      std::vector<int32_t> part(static_cast<size_t>(numel_of(box)));
      for (size_t i = 0; i < written.size(); ++i)
        copied += copy_common(stored[i].data(), written[i], part.data(), box, 4);
      copy_common(part.data(), box, back.data(), whole_box(shape), 4);
    }
    ASSERT_EQ(copied, numel_of(shape)) << "seed " << seed;
    ASSERT_EQ(back, whole) << "seed " << seed;
  }
}

TEST(Box, StridedCopiesFollowTheStrides) {
  const std::vector<int16_t> source{0, 1, 2, 3, 4, 5};  // [2, 3], read transposed
  std::vector<int16_t> target(4, -1);

  copy_strided(source.data(), std::vector<int64_t>{1, 3}, {{1, 0}, {2, 2}}, target.data(), 2);

  EXPECT_EQ(target, (std::vector<int16_t>{1, 4, 2, 5}));
}

TEST(Dtype, NamesLeadBackToTheDtype) {
  for (int i = 0; i <= static_cast<int>(Dtype::kFloat4E2M1FnX2); ++i) {
    const auto dtype = static_cast<Dtype>(i);
    EXPECT_EQ(dtype_of_torch_name(torch_name(dtype)), dtype);
    if (!safetensors_name(dtype).empty()) {
      EXPECT_EQ(dtype_of_safetensors_name(safetensors_name(dtype)), dtype);
    }
    if (!storage_class(dtype).empty()) {
      EXPECT_EQ(dtype_of_storage_class(storage_class(dtype)), dtype);
    }
  }
  EXPECT_EQ(dtype_of_safetensors_name(""), std::nullopt);
  EXPECT_EQ(safetensors_name(Dtype::kComplex128), "");
}

float cast_back(float value, Dtype through) {
  char narrow[8];
  float back = 0;
  cast_elements(Dtype::kFloat32, &value, through, narrow, 1);
  cast_elements(through, narrow, Dtype::kFloat32, &back, 1);
  return back;
}

TEST(Cast, HalfRoundsToNearestEven) {
  EXPECT_EQ(cast_back(1.0f + 0x1p-11f, Dtype::kFloat16), 1.0f);  // a tie goes to even
  EXPECT_EQ(cast_back(1.0f + 3 * 0x1p-11f, Dtype::kFloat16), 1.0f + 0x1p-9f);
  EXPECT_EQ(cast_back(65519.0f, Dtype::kFloat16), 65504.0f);
  EXPECT_EQ(cast_back(65520.0f, Dtype::kFloat16), std::numeric_limits<float>::infinity());
  EXPECT_EQ(cast_back(0x1p-24f, Dtype::kFloat16), 0x1p-24f);  // the smallest subnormal
  EXPECT_EQ(cast_back(0x1p-25f, Dtype::kFloat16), 0.0f);
  EXPECT_EQ(cast_back(0x1.8p-25f, Dtype::kFloat16), 0x1p-24f);
  EXPECT_EQ(cast_back(-0x1.ffep-15f, Dtype::kFloat16), -0x1p-14f);  // up into the normal range
  EXPECT_TRUE(std::isnan(cast_back(NAN, Dtype::kFloat16)));
  EXPECT_TRUE(std::isnan(cast_back(NAN, Dtype::kBFloat16)));
  EXPECT_EQ(cast_back(1.0f + 0x1p-8f, Dtype::kBFloat16), 1.0f);
  EXPECT_EQ(cast_back(1.0f + 3 * 0x1p-8f, Dtype::kBFloat16), 1.0f + 0x1p-6f);
}

TEST(Cast, EveryHalfSurvivesTheWayThroughFloatAndDouble) {
  for (const Dtype half : {Dtype::kFloat16, Dtype::kBFloat16}) {
    for (const Dtype wide : {Dtype::kFloat32, Dtype::kFloat64}) {
      for (uint32_t bits = 0; bits < 65536; ++bits) {
        const auto narrow = static_cast<uint16_t>(bits);
        char value[8];
        uint16_t back = 0;
        cast_elements(half, &narrow, wide, value, 1);
        cast_elements(wide, value, half, &back, 1);
        float as_float = 0;
        cast_elements(half, &narrow, Dtype::kFloat32, &as_float, 1);
        if (!std::isnan(as_float)) {
          ASSERT_EQ(back, narrow);
        }
      }
    }
  }
  EXPECT_THROW(cast_elements(Dtype::kInt64, nullptr, Dtype::kFloat32, nullptr, 0), UsageError);
}

}  // namespace
}  // namespace hasten::files
