// Images in tests: making small ones, reading the golden ones of tests/data/images, comparing.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "hasten/data/image/image.h"
#include "support/sources.h"

namespace hasten::testing {

inline std::string golden_image(const std::string& name) {
  return (tests_folder() / "data" / "images" / name).string();
}

/// A binary PPM as tests/data/images/make.py writes it.
inline data::Image read_ppm(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::string magic;
  int64_t width = 0, height = 0;
  int depth = 0;
  in >> magic >> width >> height >> depth;
  in.get();
  EXPECT_EQ(magic, "P6") << path;
  data::Image image(height, width);
  in.read(reinterpret_cast<char*>(image.row(0)), height * width * 3);
  EXPECT_TRUE(in) << path;
  return image;
}

struct PixelDifference {
  double mean = 0;
  int largest = 0;
};

inline PixelDifference difference(const data::Image& a, const data::Image& b) {
  EXPECT_EQ(a.height(), b.height());
  EXPECT_EQ(a.width(), b.width());
  if (a.height() != b.height() || a.width() != b.width()) return {255, 255};
  PixelDifference result;
  for (int64_t y = 0; y < a.height(); ++y) {
    for (int64_t i = 0; i < a.width() * 3; ++i) {
      const int apart = std::abs(a.row(y)[i] - b.row(y)[i]);
      result.mean += apart;
      result.largest = std::max(result.largest, apart);
    }
  }
  result.mean /= static_cast<double>(a.height() * a.width() * 3);
  return result;
}

/// Pixel (y, x) is (y, x, 10).
inline data::Image coordinates(int64_t height, int64_t width) {
  data::Image image(height, width);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      const uint8_t pixel[] = {static_cast<uint8_t>(y), static_cast<uint8_t>(x), 10};
      std::memcpy(image.row(y) + x * 3, pixel, 3);
    }
  }
  return image;
}

}  // namespace hasten::testing
