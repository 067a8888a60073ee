// The steps of image_transform.h, the resize filter aside (resize.cpp).
#include "hasten/data/image/image_transform.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "data/origin.h"
#include "hasten/core/error.h"

namespace hasten::data {

namespace {

/// Resizes in place; the memory of the old size stays for the next image.
void resize_here(Image& image, int64_t height, int64_t width) {
  thread_local Image other;
  resize(image, height, width, other);
  std::swap(image, other);
}

/// Half of what is over, half to even.
int64_t middle(int64_t size, int64_t window) {
  return static_cast<int64_t>(std::nearbyint(static_cast<double>(size - window) / 2));
}

int64_t anywhere(int64_t size, int64_t window, SampleRandom& random) {
  return size < window ? 0 : static_cast<int64_t>(random.below(static_cast<uint64_t>(size - window + 1)));
}

void crop_random_area(const RandomResizedCrop& step, SampleRandom& random, Image& image) {
  const auto height = static_cast<double>(image.height()), width = static_cast<double>(image.width());
  for (int tries = 0; tries < 10; ++tries) {
    const double area = height * width * random.uniform(step.min_area, step.max_area);
    const double ratio = std::exp(random.uniform(std::log(step.min_ratio), std::log(step.max_ratio)));
    const int64_t w = std::llround(std::sqrt(area * ratio)), h = std::llround(std::sqrt(area / ratio));
    if (w < 1 || h < 1 || w > image.width() || h > image.height()) continue;
    const int64_t top = anywhere(image.height(), h, random);
    return image.crop(top, anywhere(image.width(), w, random), h, w);
  }
  int64_t w = image.width(), h = image.height();
  if (width / height < step.min_ratio) h = std::min<int64_t>(h, std::llround(width / step.min_ratio));
  if (width / height > step.max_ratio) w = std::min<int64_t>(w, std::llround(height * step.max_ratio));
  image.crop((image.height() - h) / 2, (image.width() - w) / 2, h, w);
}

void flip(Image& image) {
  for (int64_t y = 0; y < image.height(); ++y) {
    uint8_t* left = image.row(y);
    uint8_t* right = left + (image.width() - 1) * 3;
    for (; left < right; left += 3, right -= 3) std::swap_ranges(left, left + 3, right);
  }
}

struct Apply {
  Image& image;
  SampleRandom& random;

  void operator()(const Resize& step) const { resize_here(image, step.height, step.width); }
  void operator()(const ResizeShorter& step) const {
    const int64_t height = image.height(), width = image.width();
    const auto in_proportion = [&](int64_t longer, int64_t shorter) {
      return static_cast<int64_t>(static_cast<double>(step.size * longer) / static_cast<double>(shorter));
    };
    height < width ? resize_here(image, step.size, in_proportion(width, height))
                   : resize_here(image, in_proportion(height, width), step.size);
  }
  void operator()(const CenterCrop& step) const {
    image.crop(middle(image.height(), step.height), middle(image.width(), step.width), step.height, step.width);
  }
  void operator()(const RandomCrop& step) const {
    const int64_t top = anywhere(image.height(), step.height, random);
    image.crop(top, anywhere(image.width(), step.width, random), step.height, step.width);
  }
  void operator()(const RandomResizedCrop& step) const {
    crop_random_area(step, random, image);
    resize_here(image, step.height, step.width);
  }
  void operator()(const HorizontalFlip& step) const {
    if (random.uniform() < step.probability) flip(image);
  }
  void operator()(const ImageFunction& step) const { step(image, random); }
};

struct Check {
  void size(const char* name, int64_t height, int64_t width) const {
    if (height > 0 && width > 0) return;
    throw UsageError(kOrigin, name, " to ", height, " x ", width, " (height x width), expected 1 or more.");
  }
  void operator()(const Resize& step) const { size("Resize", step.height, step.width); }
  void operator()(const ResizeShorter& step) const { size("ResizeShorter", step.size, step.size); }
  void operator()(const CenterCrop& step) const { size("CenterCrop", step.height, step.width); }
  void operator()(const RandomCrop& step) const { size("RandomCrop", step.height, step.width); }
  void operator()(const RandomResizedCrop& step) const {
    size("RandomResizedCrop", step.height, step.width);
    if (!(0 < step.min_area && step.min_area <= step.max_area && step.max_area <= 1) ||
        !(0 < step.min_ratio && step.min_ratio <= step.max_ratio && std::isfinite(step.max_ratio))) {
      throw UsageError(kOrigin, "RandomResizedCrop of areas ", step.min_area, " to ", step.max_area, " and ratios ",
                       step.min_ratio, " to ", step.max_ratio,
                       ", expected 0 < min_area <= max_area <= 1 and 0 < min_ratio <= max_ratio.");
    }
  }
  void operator()(const HorizontalFlip& step) const {
    if (step.probability >= 0 && step.probability <= 1) return;
    throw UsageError(kOrigin, "HorizontalFlip with probability ", step.probability, ", expected 0 to 1.");
  }
  void operator()(const ImageFunction& step) const {
    if (!step) throw UsageError(kOrigin, "an image step that is an empty function. Leave it out.");
  }
};

}  // namespace

void check_steps(const std::vector<ImageStep>& steps) {
  for (const ImageStep& step : steps) std::visit(Check{}, step);
}

void apply_steps(const std::vector<ImageStep>& steps, SampleRandom& random, Image& image) {
  for (const ImageStep& step : steps) std::visit(Apply{image, random}, step);
}

PixelScale::PixelScale(const std::array<float, 3>& mean, const std::array<float, 3>& std) {
  for (size_t channel = 0; channel < 3; ++channel) {
    if (!(std[channel] > 0)) {
      throw UsageError(kOrigin, "pixels scaled with std = ", join(std), ", expected three numbers above 0.");
    }
    for (size_t value = 0; value < 256; ++value) {
      values_[channel][value] = (static_cast<float>(value) / 255.0f - mean[channel]) / std[channel];
    }
  }
}

void PixelScale::write(const Image& image, float* to) const {
  const int64_t plane = image.height() * image.width();
  for (int64_t y = 0; y < image.height(); ++y, to += image.width()) {
    const uint8_t* from = image.row(y);
    for (int64_t x = 0; x < image.width(); ++x, from += 3) {
      to[x] = values_[0][from[0]];
      to[x + plane] = values_[1][from[1]];
      to[x + 2 * plane] = values_[2][from[2]];
    }
  }
}

at::Tensor PixelScale::operator()(const Image& image) const {
  const at::Tensor values = at::empty({3, image.height(), image.width()}, at::kFloat);
  write(image, values.mutable_data_ptr<float>());
  return values;
}

}  // namespace hasten::data
