// Finding, reading and stacking the images of a folder; see image_folder.h.
#include "hasten/data/dataset/image_folder.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <exception>
#include <filesystem>
#include <set>
#include <utility>

#include "data/origin.h"
#include "hasten/core/error.h"
#include "hasten/core/sentence.h"
#include "hasten/core/strings.h"
#include "hasten/data/dataset/rows.h"

namespace hasten::data {

namespace {

namespace fs = std::filesystem;

bool is_image(const std::string& name) {
  const std::string extension = core::lower(fs::path(name).extension().string());
  return extension == ".png" || extension == ".jpg" || extension == ".jpeg";
}

/// Names in a folder that do not begin with a dot, sorted; folders and files apart.
struct Names {
  std::vector<std::string> folders, files;

  explicit Names(const std::string& folder) {
    for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
      std::string name = entry.path().filename();
      if (!name.starts_with('.')) (entry.is_directory() ? folders : files).push_back(std::move(name));
    }
    std::sort(folders.begin(), folders.end());
    std::sort(files.begin(), files.end());
  }
};

/// Returns the images below a class's folder: folders in the order of their whole paths, as torchvision's sorted
/// os.walk gives them. A folder that links lead back to is visited once.
std::vector<std::string> images_below(const std::string& root, size_t& num_others) {
  std::vector<std::pair<std::string, std::vector<std::string>>> found;
  std::vector<std::string> open{root};
  std::set<fs::path> seen;
  while (!open.empty()) {
    const std::string folder = std::move(open.back());
    open.pop_back();
    if (!seen.insert(fs::canonical(folder)).second) continue;
    Names names(folder);
    for (const std::string& name : names.folders) open.push_back(folder + "/" + name);
    found.emplace_back(folder, std::move(names.files));
  }
  std::sort(found.begin(), found.end());
  std::vector<std::string> images;
  for (const auto& [folder, files] : found) {
    for (const std::string& name : files) {
      is_image(name) ? images.push_back(folder + "/" + name) : void(++num_others);
    }
  }
  return images;
}

}  // namespace

struct ImageFolder::Contents {
  Contents(const std::string& root, const ImageFolderOptions& given) : options(given), scale(given.mean, given.std) {
    check_steps(options.steps);
    classes = Names(root).folders;
    if (classes.empty()) {
      throw DataError(kOrigin, root, "'", root, "' holds no folder, expected one for each class (root/cat/1.jpg). ",
                      "Check the path.");
    }
    for (size_t target = 0; target < classes.size(); ++target) {
      size_t num_others = 0;
      const std::string folder = root + "/" + classes[target];
      auto images = images_below(folder, num_others);
      if (images.empty()) {
        throw DataError(kOrigin, folder, "class '", classes[target], "' in '", folder, "' holds no image but ",
                        num_others, " other files, expected .png, .jpg or .jpeg. Fill the folder or take it away.");
      }
      targets.insert(targets.end(), images.size(), static_cast<int64_t>(target));
      paths.insert(paths.end(), std::move_iterator(images.begin()), std::move_iterator(images.end()));
    }
  }

  const ImageFolderOptions options;
  const PixelScale scale;
  std::vector<std::string> classes, paths;
  std::vector<int64_t> targets;
};

ImageFolder::ImageFolder(const std::string& root, const ImageFolderOptions& options) {
  try {
    contents_ = std::make_shared<const Contents>(root, options);
  } catch (const fs::filesystem_error& error) {
    throw DataError(kOrigin, error.path1(), "cannot read '", error.path1().string(), "': ", error.code().message(),
                    "; expected a folder of images with one folder a class. Check the path.");
  }
}

const Image& ImageFolder::load(size_t index) const {
  thread_local Image image;
  const std::string& file = path(index);
  read_image(file, image);
  SampleRandom random(contents_->options.seed, epoch_, index);
  try {
    apply_steps(contents_->options.steps, random, image);
  } catch (const std::exception& error) {
    std::throw_with_nested(DataError(kOrigin, file, "a step failed on '", file, "': ", inner_words(error.what()), "."));
  }
  return image;
}

torch::data::Example<> ImageFolder::get(size_t index) {
  const int64_t label = target(index);
  return {contents_->scale(load(index)), at::full({}, label, at::kLong)};
}

std::optional<size_t> ImageFolder::size() const {
  return contents_->paths.size();
}
const std::vector<std::string>& ImageFolder::classes() const noexcept {
  return contents_->classes;
}

const std::string& ImageFolder::path(size_t index) const {
  check_index(index, contents_->paths.size(), "an image folder");
  return contents_->paths[index];
}

int64_t ImageFolder::target(size_t index) const {
  check_index(index, contents_->targets.size(), "an image folder");
  return contents_->targets[index];
}

StackedImageFolder::StackedImageFolder(ImageFolder folder) : folder_(std::move(folder)) {}

torch::data::Example<> StackedImageFolder::get_batch(c10::ArrayRef<size_t> indices) {
  const auto count = static_cast<int64_t>(indices.size());
  torch::data::Example<> batch(at::empty({count, 3, 0, 0}, at::kFloat), empty_rows({count}, at::kLong));
  int64_t height = 0, width = 0;
  for (int64_t i = 0; i < count; ++i) {
    const size_t index = indices[static_cast<size_t>(i)];
    batch.target.mutable_data_ptr<int64_t>()[i] = folder_.target(index);
    const Image& image = folder_.load(index);
    if (i == 0) {
      height = image.height();
      width = image.width();
      batch.data = empty_rows({count, 3, height, width}, at::kFloat);
    } else if (image.height() != height || image.width() != width) {
      throw DataError(kOrigin, folder_.path(index), "images of one batch differ in size: '", folder_.path(indices[0]),
                      "' is ", height, " x ", width, ", '", folder_.path(index), "' is ", image.height(), " x ",
                      image.width(), " (height x width), expected the same. Add a Resize or a crop to the steps.");
    }
    folder_.contents_->scale.write(image, batch.data.mutable_data_ptr<float>() + i * 3 * height * width);
  }
  return batch;
}

}  // namespace hasten::data
