// Cityscapes' folders: leftImg8bit/SPLIT/CITY/*_leftImg8bit.png with gtFine/SPLIT/CITY/*_gtFine_labelIds.png.
//
// Label ids 7 8 11 12 13 17 19-28 31 32 33 become the classes 0-18, all others 255, which losses and counts leave out.
#pragma once

#include <ATen/ATen.h>
#include <hasten/core/error.h>
#include <hasten/data/image/image.h>
#include <hasten/data/image/image_transform.h>
#include <hasten/data/sampler/detail/sample_random.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace example {

inline constexpr int64_t kCityClasses = 19, kCityIgnored = 255;

/// Class of each label id.
inline std::array<uint8_t, 256> city_classes() {
  constexpr std::array<int, kCityClasses> kIds = {7,  8,  11, 12, 13, 17, 19, 20, 21, 22,
                                                  23, 24, 25, 26, 27, 28, 31, 32, 33};
  std::array<uint8_t, 256> classes{};
  classes.fill(kCityIgnored);
  for (size_t i = 0; i < kIds.size(); ++i) classes[static_cast<size_t>(kIds[i])] = static_cast<uint8_t>(i);
  return classes;
}

/// Batches of images [n, 3, crop, 2 crop] and classes [n, crop, 2 crop]: a random window and flip in training, the
/// middle else.
class Cityscapes : public torch::data::datasets::BatchDataset<Cityscapes, torch::data::Example<>> {
 public:
  static constexpr bool kThreadSafe = true;
  /// Throws: DataError if the split has no images, or one without labels.
  Cityscapes(const std::string& root, const std::string& split, int64_t crop, uint64_t seed)
      : crop_(crop), seed_(seed), training_(split == "train") {
    namespace fs = std::filesystem;
    auto files = std::make_shared<std::vector<std::pair<std::string, std::string>>>();
    const fs::path images = fs::path(root) / "leftImg8bit" / split;
    if (fs::is_directory(images)) {
      for (const auto& entry : fs::recursive_directory_iterator(images)) {
        auto name = entry.path().filename().string();
        const auto end = name.rfind("_leftImg8bit.png");
        if (end == std::string::npos) continue;
        const auto labels = fs::path(root) / "gtFine" / split / entry.path().parent_path().filename() /
                            (name.substr(0, end) + "_gtFine_labelIds.png");
        if (!fs::exists(labels))
          throw hasten::DataError(hasten::Origin{"cityscapes"}, labels.string(), "no labels ", labels.string(), " for ",
                                  name);
        files->emplace_back(entry.path().string(), labels.string());
      }
    }
    if (files->empty()) {
      throw hasten::DataError(hasten::Origin{"cityscapes"}, images.string(), "no images *_leftImg8bit.png below ",
                              images.string(), "; expected leftImg8bit/SPLIT/CITY and gtFine/SPLIT/CITY in --data.");
    }
    std::sort(files->begin(), files->end());
    files_ = std::move(files);
  }

  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override {
    const auto n = static_cast<int64_t>(indices.size());
    auto images = at::empty({n, 3, crop_, 2 * crop_}), classes = at::empty({n, crop_, 2 * crop_}, at::kLong);
    static const auto kTable = city_classes();
    const hasten::data::PixelScale scale(hasten::data::kImageNetMean, hasten::data::kImageNetStd);
    for (int64_t i = 0; i < n; ++i) {
      const auto& [image_file, label_file] = (*files_)[indices[static_cast<size_t>(i)]];
      auto image = hasten::data::read_image(image_file), labels = hasten::data::read_image(label_file);
      const int64_t spare_rows = image.height() - crop_, spare_columns = image.width() - 2 * crop_;
      if (spare_rows < 0 || spare_columns < 0 || labels.height() != image.height() || labels.width() != image.width()) {
        throw hasten::DataError(hasten::Origin{"cityscapes"}, image_file, image_file, " has ", image.height(), " x ",
                                image.width(), " pixels, its labels ", labels.height(), " x ", labels.width(),
                                "; expected equal sizes of at least ", crop_, " x ", 2 * crop_, ".");
      }
      hasten::data::SampleRandom random(seed_, epoch_, indices[static_cast<size_t>(i)]);
      const auto place = [&](int64_t spare) {
        return training_ ? std::min(spare, static_cast<int64_t>(random.uniform() * static_cast<double>(spare + 1)))
                         : spare / 2;
      };
      const int64_t top = place(spare_rows), left = place(spare_columns);
      const bool flips = training_ && random.uniform() < 0.5;
      image.crop(top, left, crop_, 2 * crop_);
      labels.crop(top, left, crop_, 2 * crop_);
      scale.write(image, images[i].mutable_data_ptr<float>());
      auto* to = classes[i].mutable_data_ptr<int64_t>();
      for (int64_t y = 0; y < crop_; ++y) {
        for (int64_t x = 0; x < 2 * crop_; ++x) *to++ = kTable[labels.row(y)[3 * x]];
      }
      if (flips) {
        images[i].copy_(images[i].flip({2}));
        classes[i].copy_(classes[i].flip({1}));
      }
    }
    return {images, classes};
  }
  std::optional<size_t> size() const override { return files_->size(); }
  void set_epoch(uint64_t epoch) noexcept { epoch_ = epoch; }

 private:
  std::shared_ptr<const std::vector<std::pair<std::string, std::string>>> files_;
  int64_t crop_;
  uint64_t seed_, epoch_ = 0;
  bool training_;
};

}  // namespace example
