// Transforms of an image between file and tensor: resize, crop, flip, normalise, and steps of your own.
//
// Steps work on 8-bit pixels in place. Randomness comes from the sample's own generator (sample_random.h), so the
// result is a pure function of (seed, epoch, sample index). The resize filter is src/data/image/resize.cpp's.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <variant>
#include <vector>

#include "hasten/data/image/image.h"
#include "hasten/data/sampler/detail/sample_random.h"

namespace hasten::data {

/// To this size, whatever the shape was: bilinear, over all pixels that fall on one when it shrinks
/// (antialias), as Pillow's resize does.
struct Resize {
  int64_t height, width;
};
/// The shorter side to this length, the longer in proportion (rounded down); torchvision's Resize(size).
struct ResizeShorter {
  int64_t size;
};
/// The middle; where one pixel is over, half to even, as torchvision.
struct CenterCrop {
  int64_t height, width;
};
/// A window anywhere inside.
struct RandomCrop {
  int64_t height, width;
};
/// A window of random area and shape, resized (Inception's augmentation). If ten tries do not fit, it takes the largest
/// window in the middle within the ratios. This is torchvision's RandomResizedCrop, with random numbers of our own.
struct RandomResizedCrop {
  int64_t height, width;
  double min_area = 0.08, max_area = 1;             ///< of the image
  double min_ratio = 3.0 / 4, max_ratio = 4.0 / 3;  ///< width / height
};
/// Mirrors left and right.
struct HorizontalFlip {
  double probability = 0.5;
};
/// Yours. Called from several threads at once; take random numbers from the second argument alone.
using ImageFunction = std::function<void(Image&, SampleRandom&)>;

using ImageStep =
    std::variant<Resize, ResizeShorter, CenterCrop, RandomCrop, RandomResizedCrop, HorizontalFlip, ImageFunction>;

/// Mean and deviation of ImageNet's pixels in [0, 1], which most published models were trained with.
inline constexpr std::array<float, 3> kImageNetMean{0.485f, 0.456f, 0.406f};
inline constexpr std::array<float, 3> kImageNetStd{0.229f, 0.224f, 0.225f};

/// Refuses sizes, ranges and deviations that fit no image.
/// Throws: UsageError with the values.
void check_steps(const std::vector<ImageStep>& steps);

/// Runs the steps on `image`, in order.
/// Throws: UsageError if the image is smaller than a crop; the exceptions of a step of
/// yours.
void apply_steps(const std::vector<ImageStep>& steps, SampleRandom& random, Image& image);

/// To `height` x `width`; see Resize.
/// Throws: UsageError for a size below 1.
void resize(const Image& from, int64_t height, int64_t width, Image& to);

/// Pixels to numbers: (value / 255 - mean) / std of each channel, exactly as torchvision's ToTensor and
/// Normalize compute it.
class PixelScale {
 public:
  /// Throws: UsageError for a std of 0 or less.
  PixelScale(const std::array<float, 3>& mean, const std::array<float, 3>& std);

  /// Writes [3, height, width].
  void write(const Image& image, float* to) const;
  /// A new tensor, float32 [3, height, width].
  at::Tensor operator()(const Image& image) const;

 private:
  std::array<std::array<float, 256>, 3> values_;
};

}  // namespace hasten::data
