#include "hasten/data/image/image_transform.h"

#include <gtest/gtest.h>
#include <torch/types.h>

#include <set>

#include "support/folder.h"
#include "support/pixels.h"

namespace hasten::data {
namespace {

using testing::coordinates;
using testing::difference;
using testing::golden_image;
using testing::read_ppm;
using testing::words_of;

Image applied(const std::vector<ImageStep>& steps, Image image, uint64_t index = 0) {
  SampleRandom random(1, 0, index);
  check_steps(steps);
  apply_steps(steps, random, image);
  return image;
}

// The .ppm files hold what Pillow's resize gives; see tests/data/images/make.py.
TEST(ImageResize, IsPillowsWithinOneStepOfTheScale) {
  const Image photo = read_image(golden_image("photo.png"));
  for (const auto& [height, width] : {std::pair<int, int>{15, 20}, {7, 44}, {41, 60}, {2, 3}, {30, 10}}) {
    Image ours;
    resize(photo, height, width, ours);

    const auto apart = difference(ours, read_ppm(golden_image(text("resize_", height, "x", width, ".ppm"))));

    EXPECT_LE(apart.largest, 1) << height << " x " << width;
    EXPECT_LE(apart.mean, 0.3) << height << " x " << width;
  }
}

TEST(ImageResize, OfAWindowIsThatOfItsCopy) {
  Image window = read_image(golden_image("photo.png"));
  window.crop(3, 5, 20, 30);
  Image copy(20, 30), from_window, from_copy;
  for (int64_t y = 0; y < 20; ++y) std::memcpy(copy.row(y), window.row(y), 90);

  resize(window, 9, 13, from_window);
  resize(copy, 9, 13, from_copy);

  EXPECT_EQ(difference(from_window, from_copy).largest, 0);
}

TEST(ImageResize, ToTheSameSizeOrOfOneColourChangesNothing) {
  const Image photo = read_image(golden_image("photo.png"));
  Image same, gray(5, 7), larger;
  std::memset(gray.row(0), 255, 5 * 7 * 3);

  resize(photo, photo.height(), photo.width(), same);
  resize(gray, 33, 2, larger);

  EXPECT_EQ(difference(same, photo).largest, 0);
  for (int64_t i = 0; i < 33 * 2 * 3; ++i) EXPECT_EQ(larger.row(0)[i], 255);
}

TEST(ImageSteps, ResizeShorterKeepsTheProportion) {
  EXPECT_EQ(applied({ResizeShorter{10}}, coordinates(30, 44)).width(), 14);
  EXPECT_EQ(applied({ResizeShorter{10}}, coordinates(30, 44)).height(), 10);
  EXPECT_EQ(applied({ResizeShorter{10}}, coordinates(45, 20)).height(), 22);
}

TEST(ImageSteps, CenterCropTakesTheMiddle) {
  const Image even = applied({CenterCrop{4, 2}}, coordinates(10, 10));
  const Image odd = applied({CenterCrop{3, 7}}, coordinates(10, 10));

  EXPECT_EQ(even.row(0)[0], 3);
  EXPECT_EQ(even.row(0)[1], 4);
  EXPECT_EQ(odd.row(0)[0], 4) << "3.5 becomes 4, the even one, as in torchvision";
  EXPECT_EQ(odd.row(0)[1], 2) << "1.5 becomes 2";
}

TEST(ImageSteps, RandomCropReachesEveryPlaceAndNoOther) {
  std::set<std::pair<int, int>> places;
  for (uint64_t index = 0; index < 300; ++index) {
    const Image crop = applied({RandomCrop{8, 7}}, coordinates(10, 9), index);
    EXPECT_EQ(crop.row(7)[6 * 3 + 1], crop.row(0)[1] + 6);
    places.emplace(crop.row(0)[0], crop.row(0)[1]);
  }

  EXPECT_EQ(places.size(), 9u);
  EXPECT_EQ(places.rbegin()->first, 2);
}

TEST(ImageSteps, HorizontalFlipMirrorsAsOftenAsItsProbability) {
  const Image odd = applied({HorizontalFlip{1}}, coordinates(2, 5)),
              even = applied({HorizontalFlip{1}}, coordinates(2, 4));
  int flipped = 0;
  for (uint64_t index = 0; index < 1000; ++index) {
    flipped += applied({HorizontalFlip{0.3}}, coordinates(1, 2), index).row(0)[1] == 1;
  }

  for (int x = 0; x < 5; ++x) EXPECT_EQ(odd.row(1)[x * 3 + 1], 4 - x);
  for (int x = 0; x < 4; ++x) EXPECT_EQ(even.row(1)[x * 3 + 1], 3 - x);
  EXPECT_EQ(even.row(1)[0], 1) << "rows stay where they are";
  EXPECT_NEAR(flipped, 300, 60);
  EXPECT_EQ(applied({HorizontalFlip{0}}, coordinates(1, 2)).row(0)[1], 0);
}

TEST(ImageSteps, RandomResizedCropGivesItsSizeFromWindowsOfManyAreas) {
  std::set<int> lefts;
  for (uint64_t index = 0; index < 100; ++index) {
    const Image crop = applied({RandomResizedCrop{6, 5}}, coordinates(60, 80), index);
    EXPECT_EQ(crop.height(), 6);
    EXPECT_EQ(crop.width(), 5);
    lefts.insert(crop.row(0)[1]);
  }

  EXPECT_GT(lefts.size(), 20u);
}

TEST(ImageSteps, RandomResizedCropFallsBackToTheMiddleWhereNothingFits) {
  const Image crop = applied(
      {RandomResizedCrop{.height = 3, .width = 3, .min_area = 1, .min_ratio = 1, .max_ratio = 1}}, coordinates(3, 50));

  EXPECT_EQ(crop.row(0)[1], 23);
  EXPECT_EQ(crop.row(0)[2 * 3 + 1], 25);
}

TEST(ImageSteps, AStepOfYoursGetsTheImageAndTheSamplesRandomNumbers) {
  const ImageFunction paint = [](Image& image, SampleRandom& random) {
    image.row(0)[0] = static_cast<uint8_t>(random.below(256));
  };

  EXPECT_EQ(applied({paint}, coordinates(2, 2), 7).row(0)[0], applied({paint}, coordinates(2, 2), 7).row(0)[0]);
  EXPECT_NE(applied({paint}, coordinates(2, 2), 7).row(0)[0], applied({paint}, coordinates(2, 2), 8).row(0)[0]);
}

TEST(ImageSteps, ThatNoImageCanMeetAreRefused) {
  const auto refused = [](ImageStep step) { return words_of<UsageError>([&] { check_steps({step}); }); };

  EXPECT_EQ(refused(Resize{0, 5}), "[data] Resize to 0 x 5 (height x width), expected 1 or more.");
  EXPECT_NE(refused(ResizeShorter{-1}).find("-1"), std::string::npos);
  EXPECT_NE(refused(CenterCrop{5, 0}).find("5 x 0"), std::string::npos);
  EXPECT_NE(refused(RandomCrop{5, 0}).find("5 x 0"), std::string::npos);
  EXPECT_NE(refused(RandomResizedCrop{0, 5}).find("0 x 5"), std::string::npos);
  EXPECT_NE(
      refused(RandomResizedCrop{.height = 5, .width = 5, .min_area = 0.5, .max_area = 0.1}).find("areas 0.5 to 0.1"),
      std::string::npos);
  EXPECT_NE(refused(RandomResizedCrop{.height = 5, .width = 5, .min_ratio = 0}).find("ratios 0"), std::string::npos);
  EXPECT_NE(refused(HorizontalFlip{1.5}).find("1.5"), std::string::npos);
  EXPECT_NE(refused(ImageFunction()).find("empty function"), std::string::npos);
  EXPECT_NE(words_of<UsageError>([] {
              applied({CenterCrop{5, 5}}, coordinates(4, 9));
            }).find("an image of 4 x 9"),
            std::string::npos);
  EXPECT_NE(words_of<UsageError>([] {
              applied({RandomCrop{5, 5}}, coordinates(9, 4));
            }).find("an image of 9 x 4"),
            std::string::npos);
}

TEST(PixelScale, MakesPlanesOfNormalisedNumbers) {
  Image image = coordinates(3, 4);
  image.crop(1, 1, 2, 3);

  const auto plain = PixelScale({0, 0, 0}, {1, 1, 1})(image);
  const auto scaled = PixelScale(kImageNetMean, kImageNetStd)(image);

  EXPECT_EQ(plain.sizes(), (std::vector<int64_t>{3, 2, 3}));
  EXPECT_TRUE(torch::equal(plain[0], torch::tensor({{1.0f, 1.0f, 1.0f}, {2.0f, 2.0f, 2.0f}}).div(255)));
  EXPECT_TRUE(torch::equal(plain[1], torch::tensor({{1.0f, 2.0f, 3.0f}, {1.0f, 2.0f, 3.0f}}).div(255)));
  EXPECT_TRUE(torch::equal(scaled[2], plain[2].sub(0.406f).div(0.225f)));
  EXPECT_NE(words_of<UsageError>([] { PixelScale({0, 0, 0}, {1, 0, 1}); }).find("std = 1, 0, 1"), std::string::npos);
}

}  // namespace
}  // namespace hasten::data
