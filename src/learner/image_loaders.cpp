// See image_loaders.h.
#include "hasten/learner/image_loaders.h"
#include "hasten/core/strings.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/data/datasets/base.h>

#include <algorithm>
#include <map>

#include "learner/at_least.h"

namespace hasten::learner {
namespace {

namespace fsys = std::filesystem;

/// Batches of decoded images, whole; copies share the list of files.
class ImageFiles : public torch::data::datasets::BatchDataset<ImageFiles, torch::data::Example<>> {
 public:
  static constexpr bool kThreadSafe = true;
  struct Contents {
    std::vector<fsys::path> files;
    std::vector<int64_t> classes;
    std::vector<data::ImageStep> steps;
    data::PixelScale scale;
    uint64_t seed;
  };
  explicit ImageFiles(std::shared_ptr<const Contents> contents) : contents_(std::move(contents)) {}

  torch::data::Example<> get_batch(c10::ArrayRef<size_t> indices) override {
    std::vector<at::Tensor> images;
    auto targets = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
    for (size_t i = 0; i < indices.size(); ++i) {
      data::Image image;
      data::read_image(contents_->files[indices[i]].string(), image);
      data::SampleRandom random(contents_->seed, epoch_, indices[i]);
      data::apply_steps(contents_->steps, random, image);
      images.push_back(contents_->scale(image));
      targets.mutable_data_ptr<int64_t>()[i] = contents_->classes[indices[i]];
    }
    return {at::stack(images), targets};
  }
  std::optional<size_t> size() const override { return contents_->files.size(); }
  void set_epoch(uint64_t epoch) noexcept { epoch_ = epoch; }

 private:
  std::shared_ptr<const Contents> contents_;
  uint64_t epoch_ = 0;
};

}  // namespace

std::vector<fsys::path> image_files(const fsys::path& folder) {
  std::error_code error;
  std::vector<fsys::path> files;
  for (fsys::recursive_directory_iterator it(folder, fsys::directory_options::follow_directory_symlink, error), end;
       it != end; it.increment(error)) {
    const auto extension = core::lower(it->path().extension().string());
    if (it->is_regular_file() && (extension == ".png" || extension == ".jpg" || extension == ".jpeg"))
      files.push_back(it->path());
  }
  if (error || files.empty()) {
    throw DataError(Origin{"learner"}, folder.string(), "no images below ", folder.string(),
                    error ? ": " + error.message() : "", "; expected .png, .jpg or .jpeg files.");
  }
  std::sort(files.begin(), files.end());
  return files;
}

ValidPart random_split(double part, uint64_t seed) {
  if (!(part >= 0 && part <= 1))
    throw UsageError(Origin{"learner"}, "random_split of ", part, "; expected a part in [0, 1].");
  return [=](const std::vector<fsys::path>& files) {
    auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
    const auto order = at::randperm(static_cast<int64_t>(files.size()), generator);
    std::vector<bool> valid(files.size(), false);
    for (int64_t i = 0; i < static_cast<int64_t>(part * static_cast<double>(files.size())); ++i) {
      valid[static_cast<size_t>(order.const_data_ptr<int64_t>()[i])] = true;
    }
    return valid;
  };
}

ValidPart folder_split(std::string name) {
  return [name = std::move(name)](const std::vector<fsys::path>& files) {
    std::vector<bool> valid;
    for (const auto& file : files) {
      valid.push_back(std::any_of(file.begin(), file.end(), [&](const fsys::path& part) { return part == name; }));
    }
    return valid;
  };
}

std::string name_before_number(const fsys::path& file) {
  const auto stem = file.stem().string();
  return stem.substr(0, stem.rfind('_'));
}

std::string folder_name(const fsys::path& file) {
  return file.parent_path().filename().string();
}

Loaders image_loaders(const std::vector<fsys::path>& files, const ImageLoadersOptions& o) {
  const auto valid = o.valid(files);
  if (valid.size() != files.size()) {
    throw UsageError(Origin{"learner"}, "image_loaders: the split gives ", valid.size(), " answers for ", files.size(),
                     " files; expected one for each.");
  }
  std::map<std::string, int64_t> classes;
  for (const auto& file : files) classes.emplace(o.label(file), 0);
  Loaders loaders{.loss = cross_entropy()};
  for (auto& [name, index] : classes) {
    index = static_cast<int64_t>(loaders.vocab.size());
    loaders.vocab.push_back(name);
  }
  const auto part = [&](bool of_valid, const std::vector<data::ImageStep>& steps) {
    std::vector<data::ImageStep> own = steps;
    if (own.empty()) own = {data::Resize{o.resize, o.resize}};
    data::check_steps(own);
    ImageFiles::Contents contents{{}, {}, std::move(own), data::PixelScale(o.mean, o.std), o.seed};
    for (size_t i = 0; i < files.size(); ++i) {
      if (valid[i] != of_valid) continue;
      contents.files.push_back(files[i]);
      contents.classes.push_back(classes.at(o.label(files[i])));
    }
    return ImageFiles(std::make_shared<const ImageFiles::Contents>(std::move(contents)));
  };
  const auto loading =
      torch::data::DataLoaderOptions(static_cast<size_t>(at_least(1, "ImageLoadersOptions::batch_size", o.batch_size)))
          .workers(static_cast<size_t>(at_least(0, "ImageLoadersOptions::workers", o.workers)));
  const auto train = part(false, o.train_steps),
             held_out = part(true, o.valid_steps.empty() ? std::vector<data::ImageStep>{} : o.valid_steps);
  if (*train.size() == 0) {
    throw UsageError(Origin{"learner"}, "image_loaders: none of ", files.size(),
                     " files is left for training; take a smaller validation part.");
  }
  loaders.train = Loader(data::loader(train, data::SeedableRandomSampler(*train.size(), {.seed = o.seed}), loading))
                      .without_short_batch();
  if (*held_out.size() > 0)
    loaders.valid = data::loader(held_out, data::SeedableSequentialSampler(*held_out.size()), loading);
  return loaders;
}

}  // namespace hasten::learner
