// Bilinear resize with antialias; see image_transform.h. The filter is Pillow's: a triangle that is as wide
// as the step between output pixels, cut at the edges and normalised.
//
// Goes down the columns first, row by row and over all channels at once, which vectorises as it is. Then it goes along
// the row, a pixel's channels in one vector. Sums are floats and rounded once (Pillow rounds after each direction, so
// single pixels may differ by one).
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "hasten/core/error.h"
#include "hasten/data/image/image_transform.h"

namespace hasten::data {

namespace {

/// For each output position: the first input position, how many, and their weights.
struct Taps {
  Taps(int64_t from, int64_t to) {
    const double scale = static_cast<double>(from) / static_cast<double>(to), support = std::max(scale, 1.0);
    stride = static_cast<int64_t>(std::ceil(support)) * 2 + 1;
    weights.resize(static_cast<size_t>(to * stride));
    for (int64_t i = 0; i < to; ++i) {
      const double center = (static_cast<double>(i) + 0.5) * scale;
      const int64_t begin = std::max<int64_t>(static_cast<int64_t>(center - support + 0.5), 0);
      const int64_t end = std::min<int64_t>(static_cast<int64_t>(center + support + 0.5), from);
      double sum = 0;
      for (int64_t k = begin; k < end; ++k) sum += triangle(k, center, support);
      float* weight = weights.data() + i * stride;
      for (int64_t k = begin; k < end; ++k) *weight++ = static_cast<float>(triangle(k, center, support) / sum);
      first.push_back(begin);
      count.push_back(end - begin);
    }
  }
  static double triangle(int64_t at, double center, double support) {
    return std::max(0.0, 1 - std::abs((static_cast<double>(at) - center + 0.5) / support));
  }

  int64_t stride = 0;
  std::vector<int64_t> first, count;
  std::vector<float> weights;
};

/// sums[i] (+)= the weighted sum of four rows.
template <bool kAdd>
void add_rows(const uint8_t* const* rows, const float* weights, int64_t size, float* __restrict sums) {
  const uint8_t *a = rows[0], *b = rows[1], *c = rows[2], *d = rows[3];
  const float wa = weights[0], wb = weights[1], wc = weights[2], wd = weights[3];
  for (int64_t i = 0; i < size; ++i) {
    const float sum = (wa * static_cast<float>(a[i]) + wb * static_cast<float>(b[i])) +
                      (wc * static_cast<float>(c[i]) + wd * static_cast<float>(d[i]));
    sums[i] = kAdd ? sums[i] + sum : sum;
  }
}

void down(const Image& from, const Taps& taps, int64_t y, float* sums) {
  const auto at = static_cast<size_t>(y);
  for (int64_t k = 0; k < taps.count[at]; k += 4) {
    const uint8_t* rows[4];
    float weights[4];
    for (int64_t i = 0; i < 4; ++i) {
      const bool there = k + i < taps.count[at];
      rows[i] = from.row(taps.first[at] + (there ? k + i : 0));
      weights[i] = there ? taps.weights[at * static_cast<size_t>(taps.stride) + static_cast<size_t>(k + i)] : 0;
    }
    k == 0 ? add_rows<false>(rows, weights, from.width() * 3, sums)
           : add_rows<true>(rows, weights, from.width() * 3, sums);
  }
}

using Pixel = float __attribute__((vector_size(16)));  // the fourth value is the next pixel's, and left out

void along(const float* row, const Taps& taps, int64_t width, uint8_t* to) {
  const float* weights = taps.weights.data();
  for (int64_t x = 0; x < width; ++x, weights += taps.stride, to += 3) {
    const float* from = row + taps.first[static_cast<size_t>(x)] * 3;
    Pixel sum = {0.5f, 0.5f, 0.5f, 0.5f};
    for (int64_t k = 0; k < taps.count[static_cast<size_t>(x)]; ++k, from += 3) {
      Pixel pixel;
      std::memcpy(&pixel, from, sizeof pixel);
      sum += pixel * weights[k];
    }
    for (int channel = 0; channel < 3; ++channel) {
      to[channel] = static_cast<uint8_t>(std::min(sum[channel], 255.0f));
    }
  }
}

}  // namespace

void resize(const Image& from, int64_t height, int64_t width, Image& to) {
  if (height < 1 || width < 1) {
    throw UsageError(Origin{"data"}, "resize to ", height, " x ", width, " (height x width), expected 1 or more.");
  }
  to.reset(height, width);
  if (height == from.height() && width == from.width()) {
    for (int64_t y = 0; y < height; ++y) std::memcpy(to.row(y), from.row(y), static_cast<size_t>(width) * 3);
    return;
  }
  const Taps rows(from.height(), height), columns(from.width(), width);
  std::vector<float> sums(static_cast<size_t>(from.width()) * 3 + 1);
  for (int64_t y = 0; y < height; ++y) {
    down(from, rows, y, sums.data());
    along(sums.data(), columns, width, to.row(y));
  }
}

}  // namespace hasten::data
