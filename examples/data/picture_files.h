// Pictures in files with a class each, as whole batches for loops without a Learner (learner/image_loaders.h has its
// own).
#pragma once

#include <ATen/ATen.h>
#include <hasten/data/image/image_transform.h>
#include <torch/data/datasets/base.h>
#include <torch/data/example.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace example {

/// Classes are the names up to the last '_', sorted.
struct PictureList {
  std::vector<std::string> files, classes;
  std::vector<int64_t> labels;
};

inline PictureList list_pictures(const std::vector<std::filesystem::path>& files) {
  PictureList list;
  const auto class_of = [](const std::filesystem::path& file) {
    return file.stem().string().substr(0, file.stem().string().rfind('_'));
  };
  for (const auto& file : files) list.classes.push_back(class_of(file));
  std::sort(list.classes.begin(), list.classes.end());
  list.classes.erase(std::unique(list.classes.begin(), list.classes.end()), list.classes.end());
  for (const auto& file : files) {
    list.files.push_back(file.string());
    list.labels.push_back(std::lower_bound(list.classes.begin(), list.classes.end(), class_of(file)) -
                          list.classes.begin());
  }
  return list;
}

/// A random fifth of the pictures, or the others, with steps of their own.
class PictureFiles : public torch::data::datasets::BatchDataset<PictureFiles, torch::data::Example<>> {
 public:
  static constexpr bool kThreadSafe = true;
  PictureFiles(std::shared_ptr<const PictureList> list, bool train, uint64_t seed,
               std::vector<hasten::data::ImageStep> steps)
      : list_(std::move(list)), steps_(std::move(steps)), seed_(seed) {
    const auto order = at::randperm(static_cast<int64_t>(list_->files.size()), at::detail::createCPUGenerator(seed));
    const int64_t cut = order.numel() * 4 / 5;
    for (int64_t i = train ? 0 : cut; i < (train ? cut : order.numel()); ++i)
      chosen_.push_back(static_cast<size_t>(order.const_data_ptr<int64_t>()[i]));
    hasten::data::check_steps(steps_);
  }
  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override {
    const hasten::data::PixelScale scale(hasten::data::kImageNetMean, hasten::data::kImageNetStd);
    std::vector<at::Tensor> images;
    auto labels = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
    for (size_t i = 0; i < indices.size(); ++i) {
      const size_t at = chosen_[indices[i]];
      auto image = hasten::data::read_image(list_->files[at]);
      hasten::data::SampleRandom random(seed_, epoch_, indices[i]);
      hasten::data::apply_steps(steps_, random, image);
      images.push_back(scale(image));
      labels.mutable_data_ptr<int64_t>()[i] = list_->labels[at];
    }
    return {at::stack(images), labels};
  }
  std::optional<size_t> size() const override { return chosen_.size(); }
  void set_epoch(uint64_t epoch) noexcept { epoch_ = epoch; }

 private:
  std::shared_ptr<const PictureList> list_;
  std::vector<hasten::data::ImageStep> steps_;
  std::vector<size_t> chosen_;
  uint64_t seed_, epoch_ = 0;
};

}  // namespace example
