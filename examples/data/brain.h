// Cubes of a head and the mask of its brain: Debian's mricron-data, or any two NIfTI volumes of one grid.
//
// The middle dimension of the file runs from back to front. Training cubes come from the front two thirds, test cubes
// from the back third: left and right halves would resemble each other too much.
#pragma once

#include <ATen/ATen.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <array>
#include <memory>
#include <string>

#include "data/nifti.h"

namespace example {

struct BrainOptions {
  std::string image = "/usr/share/mricron/templates/ch2.nii.gz", mask = "/usr/share/mricron/templates/ch2bet.nii.gz";
  int64_t shrink = 2;
};

/// The volumes, each voxel the mean of shrink^3 of the file's; the image with mean 0 and deviation 1.
struct Head {
  /// Throws: DataError as read_nifti, or for volumes of different sizes.
  explicit Head(const BrainOptions& options) {
    const auto read = [&](const std::string& path) {
      return at::avg_pool3d(read_nifti(path).unsqueeze(0).unsqueeze(0),
                            {options.shrink, options.shrink, options.shrink});
    };
    const auto whole = read_nifti(options.mask);
    image = read(options.image);
    mask = at::avg_pool3d(whole.gt(0).to(at::kFloat).unsqueeze(0).unsqueeze(0),
                          {options.shrink, options.shrink, options.shrink})
               .gt(0.5)
               .to(at::kFloat);
    if (mask.sizes() != image.sizes()) {
      throw hasten::DataError(hasten::Origin{"brain"}, options.mask, options.mask, " has ", mask.sizes(), " voxels, ",
                              options.image, " ", image.sizes(), "; expected volumes of one grid.");
    }
    image = ((image - image.mean()) / image.std())[0];
    mask = mask[0];
  }
  at::Tensor image, mask;  ///< [1, depth, height, width]
};

/// `count` blocks at places that depend on the seed and the index alone: data and target [1, depth, height, width].
class HeadCubes : public torch::data::datasets::Dataset<HeadCubes> {
 public:
  static constexpr bool kThreadSafe = true;
  /// Throws: DataError if no cube fits.
  HeadCubes(std::shared_ptr<const Head> head, bool train, size_t count, std::array<int64_t, 3> size, uint64_t seed)
      : head_(std::move(head)), count_(count), size_(size), seed_(seed), train_(train) {
    const int64_t height = head_->image.size(2);
    begin_ = train ? height / 3 : 0;
    end_ = train ? height : height / 3;
    if (end_ - begin_ < size[1] || head_->image.size(1) < size[0] || head_->image.size(3) < size[2]) {
      throw hasten::DataError(hasten::Origin{"brain"}, "volume", "blocks of ", hasten::join(size, " x "),
                              " voxels do not fit into ", head_->image.sizes(), "; take a smaller --size or --shrink.");
    }
  }
  torch::data::Example<> get(size_t index) override {
    auto generator = at::detail::createCPUGenerator(seed_ * 1'000'003 + index * 2 + (train_ ? 0 : 1));
    const auto draws = at::rand({3}, generator);
    const auto place = [&](int64_t which, int64_t begin, int64_t end) {
      const int64_t places = end - begin - size_[static_cast<size_t>(which)] + 1;
      return begin + static_cast<int64_t>(draws[which].item<double>() * static_cast<double>(places));
    };
    const int64_t z = place(0, 0, head_->image.size(1)), y = place(1, begin_, end_),
                  x = place(2, 0, head_->image.size(3));
    const auto cube = [&](const at::Tensor& from) {
      return from.slice(1, z, z + size_[0]).slice(2, y, y + size_[1]).slice(3, x, x + size_[2]).contiguous();
    };
    return {cube(head_->image), cube(head_->mask)};
  }
  std::optional<size_t> size() const override { return count_; }

 private:
  std::shared_ptr<const Head> head_;
  size_t count_;
  std::array<int64_t, 3> size_;
  int64_t begin_ = 0, end_ = 0;
  uint64_t seed_;
  bool train_;
};

}  // namespace example
