#include "hasten/training/image_values.h"

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hasten/core/error.h"

namespace hasten::tracking {
namespace {

std::vector<Image> taken(const Images& images) {
  return images.pending()->take();
}

TEST(ImageValues, FloatsAreScaledCutAndPutWithChannelsLast) {
  at::Tensor image = at::zeros({3, 1, 2});
  image[0][0][0] = 1.0;
  image[1][0][0] = 0.5;
  image[2][0][1] = 7.0;
  image[0][0][1] = -1.0;
  image[1][0][1] = std::nan("");

  const auto images = taken(image);

  ASSERT_EQ(images.size(), 1u);
  EXPECT_EQ(images[0].width, 2);
  EXPECT_EQ(images[0].height, 1);
  EXPECT_EQ(images[0].pixels, (std::vector<uint8_t>{255, 127, 0, 0, 0, 255}));
}

TEST(ImageValues, TheFastPathAndTorchsOperatorsAgree) {
  const at::Tensor batch = at::rand({2, 3, 5, 4}) * 1.5 - 0.2;

  const auto fast = taken(batch),
             slow =
                 taken(batch.to(at::kDouble).to(at::kFloat).permute({0, 1, 3, 2}).contiguous().permute({0, 1, 3, 2}));

  ASSERT_EQ(fast.size(), 2u);
  EXPECT_EQ(fast[1].pixels, slow[1].pixels);
}

TEST(ImageValues, BytesBoolsMasksAndListsAreTaken) {
  const auto bytes = taken(at::full({2, 2}, 9, at::kByte));
  const auto mask = taken(at::ones({1, 2, 2}, at::kBool));
  const auto list = taken(std::vector<at::Tensor>{at::zeros({1, 2, 2}), at::zeros({2, 3, 4, 4})});
  const auto last = taken(channels_last_images(at::full({4, 2, 3}, 5, at::kByte)));

  EXPECT_EQ(bytes[0].channels, 1);
  EXPECT_EQ(bytes[0].pixels, std::vector<uint8_t>(4, 9));
  EXPECT_EQ(mask[0].pixels, std::vector<uint8_t>(4, 255));
  EXPECT_EQ(list.size(), 3u);
  EXPECT_EQ(last[0].height, 4);
  EXPECT_EQ(last[0].channels, 3);
}

TEST(ImageValues, OtherShapesAreRefused) {
  EXPECT_THROW(Images(at::zeros({5})), UsageError);
  EXPECT_THROW(Images(at::zeros({2, 4, 4})), UsageError);
  EXPECT_THROW(Images(at::zeros({1, 2, 3, 4, 5})), UsageError);
  EXPECT_THROW(channels_last_images(at::zeros({3, 4, 5})), UsageError);
}

}  // namespace
}  // namespace hasten::tracking
