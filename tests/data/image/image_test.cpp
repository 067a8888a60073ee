#include "hasten/data/image/image.h"

#include <gtest/gtest.h>

#include "support/folder.h"
#include "support/pixels.h"

namespace hasten::data {
namespace {

using testing::coordinates;
using testing::difference;
using testing::golden_image;
using testing::InFolder;
using testing::read_ppm;
using testing::words_of;

class Images : public InFolder {
 protected:
  static std::string bytes_of(const std::string& name) {
    std::ifstream in(golden_image(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static std::string refused(const std::string& bytes) {
    Image image;
    return words_of<DataError>([&] { decode_image(bytes, "a file", image); });
  }
};

// The .ppm files hold what Pillow's convert("RGB") gives; see tests/data/images/make.py.
TEST_F(Images, PngsOfAllKindsAreWhatPillowMakesOfThem) {
  for (const char* name : {"photo.png", "gray.png", "black.png", "palette.png", "rgba.png", "gray_alpha.png",
                           "rgb16.png", "gray2.png", "gray16.png", "interlaced.png"}) {
    EXPECT_EQ(difference(read_image(golden_image(name)), read_ppm(golden_image(name + std::string(".ppm")))).largest, 0)
        << name;
  }
}

TEST_F(Images, JpegsOfAllKindsAreWhatPillowMakesOfThem) {
  for (const char* name : {"photo.jpg", "progressive.jpg", "gray.jpg", "cmyk.jpg"}) {
    const auto apart = difference(read_image(golden_image(name)), read_ppm(golden_image(name + std::string(".ppm"))));

    EXPECT_LE(apart.largest, 2) << name;
    EXPECT_LE(apart.mean, 0.05) << name;
  }
}

TEST_F(Images, AreToldApartByTheirBytesNotByTheirNames) {
  const std::string file = write("photo.jpg", bytes_of("photo.png"));

  EXPECT_EQ(read_image(file).width(), 44);
}

TEST_F(Images, AFileCutAnywhereIsRefusedWithItsPath) {
  for (const char* name : {"photo.jpg", "progressive.jpg", "cmyk.jpg", "photo.png", "palette.png", "interlaced.png"}) {
    const std::string whole = bytes_of(name);
    ASSERT_GT(whole.size(), 64u) << name;
    for (size_t size = 0; size < whole.size() - 2; size += size < 64 ? 1 : 37) {
      const std::string words = refused(whole.substr(0, size));
      EXPECT_NE(words.find("'a file' is "), std::string::npos) << name << " cut to " << size << ": " << words;
    }
  }
}

TEST_F(Images, ADamagedPngIsRefused) {
  std::string bytes = bytes_of("photo.png");
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 0x55);

  EXPECT_NE(refused(bytes).find("is a damaged or truncated PNG"), std::string::npos) << refused(bytes);
}

TEST_F(Images, ADamagedJpegIsRefused) {
  std::string bytes = bytes_of("photo.jpg");
  const size_t scan = bytes.find("\xff\xda");
  bytes.replace(scan + 60, 4, "\xff\xd3\xff\xd9");

  EXPECT_NE(refused(bytes).find("is a damaged or truncated JPEG"), std::string::npos) << refused(bytes);
}

TEST_F(Images, BytesThatNoDecoderSurvivesByLuckAloneEndInAnErrorOrAnImage) {
  const std::string names[] = {"photo.jpg", "progressive.jpg", "cmyk.jpg", "photo.png", "palette.png", "gray2.png"};
  uint32_t state = 1;
  const auto random = [&state] { return state = state * 1664525 + 1013904223; };
  Image image;
  int refused = 0;
  for (int round = 0; round < 600; ++round) {
    std::string bytes = bytes_of(names[round % 6]);
    for (int i = 0; i < 3; ++i) bytes[(random() >> 8) % bytes.size()] = static_cast<char>(random() >> 24);
    try {
      decode_image(bytes, "a file", image);
      EXPECT_GT(image.width(), 0);
    } catch (const DataError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 100);
}

TEST_F(Images, ASizeThatNoHonestImageHasIsRefused) {
  std::string png = bytes_of("photo.png");
  for (const size_t at : {16u, 20u}) png.replace(at, 4, std::string("\0\0\xf0\0", 4));
  std::string jpeg = bytes_of("photo.jpg");
  const size_t frame = jpeg.find("\xff\xc0");
  jpeg.replace(frame + 5, 4, "\xf0\xff\xf0\xff");

  EXPECT_NE(refused(png).find("damaged"), std::string::npos) << "the header's checksum is wrong";
  EXPECT_NE(refused(jpeg).find("states 61695 x 61695 pixels, expected 1 to 178956970"), std::string::npos)
      << refused(jpeg);
}

TEST_F(Images, WhatIsNeitherPngNorJpegIsNamed) {
  EXPECT_EQ(refused("GIF89a"),
            "[data] 'a file' is neither PNG nor JPEG: it begins with 0x47494638. Convert it, or take it away.");
  EXPECT_NE(refused("").find("it is empty"), std::string::npos);
  EXPECT_NE(words_of<DataError>([&] { read_image(path("none.png")); }).find("No such file"), std::string::npos);
  EXPECT_NE(words_of<DataError>([&] { read_image(folder_.string()); }).find("it is no plain file"), std::string::npos);
}

TEST_F(Images, ACropIsAWindowAndACropOfItToo) {
  Image image = coordinates(10, 8);

  image.crop(2, 3, 6, 5);
  image.crop(1, 1, 2, 2);

  EXPECT_EQ(image.height(), 2);
  EXPECT_EQ(image.row(0)[0], 3);
  EXPECT_EQ(image.row(1)[3 + 0], 4);
  EXPECT_EQ(image.row(1)[3 + 1], 5);
  EXPECT_NE(
      words_of<UsageError>([&] { image.crop(0, 1, 2, 2); }).find("2 x 2 (height x width) at 0, 1 of an image of 2 x 2"),
      std::string::npos);
}

}  // namespace
}  // namespace hasten::data
