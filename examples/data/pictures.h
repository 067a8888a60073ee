// Folders of pictures made from Fashion-MNIST: in the form of the Oxford pets, of imagenette, and of Cityscapes.
//
// The pictures are Debian's dataset-fashion-mnist, so that the programs on image folders run without a download. Each
// form is what the program reads from its real set as well.
#pragma once

#include <ATen/ATen.h>
#include <hasten/core/error.h>
#include <hasten/core/text.h>
#include <hasten/data/dataset/idx.h>
#include <png.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <random>
#include <string>

namespace example {

/// Writes `bytes`, uint8 [height, width] or [height, width, 3], as a PNG file.
inline void write_png(const std::filesystem::path& path, const at::Tensor& bytes) {
  const auto flat = bytes.contiguous();
  png_image image;
  std::memset(&image, 0, sizeof image);
  image.version = PNG_IMAGE_VERSION;
  image.height = static_cast<png_uint_32>(flat.size(0));
  image.width = static_cast<png_uint_32>(flat.size(1));
  image.format = flat.dim() == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
  std::filesystem::create_directories(path.parent_path());
  if (png_image_write_to_file(&image, path.c_str(), 0, flat.const_data_ptr<uint8_t>(), 0, nullptr) == 0) {
    throw hasten::DataError(hasten::Origin{"pictures"}, path.string(), "cannot write ", path.string(), ": ",
                            image.message, ". Name another folder.");
  }
}

/// Names of the ten kinds. Shoes begin with a capital letter, as the cats among the Oxford pets do.
inline constexpr std::array<const char*, 10> kKinds = {"tshirt", "trousers", "pullover", "dress", "coat",
                                                       "Sandal", "shirt",    "Sneaker",  "bag",   "Boot"};

/// pets: FOLDER/KIND_N.png. imagenette: FOLDER/{train,val}/KIND/N.png, one in five in val.
inline void write_kinds(const std::filesystem::path& folder, int64_t count, bool as_imagenette) {
  const auto set = hasten::data::fashion_mnist(hasten::data::kFashionMnistRoot, true);
  const auto& data = set.data();
  for (int64_t i = 0; i < std::min(count, data.images.size(0)); ++i) {
    const auto kind = kKinds[static_cast<size_t>(data.labels[i].item<int64_t>())];
    const auto file = as_imagenette ? folder / (i % 5 == 4 ? "val" : "train") / kind / hasten::text(i, ".png")
                                    : folder / hasten::text(kind, "_", i, ".png");
    write_png(file, data.images[i].unsqueeze(2).expand({-1, -1, 3}));
  }
}

/// Scenes in the form of Cityscapes, `size` x 2 `size` pixels: garments of six kinds at random places on a slope of
/// grey. Kind k has the label id kSceneIds[k], the ground 7 (road).
inline constexpr std::array<int64_t, 6> kSceneIds = {24, 26, 11, 33, 21, 17};
inline void write_scenes(const std::filesystem::path& folder, int64_t count, int64_t size) {
  const auto set = hasten::data::fashion_mnist(hasten::data::kFashionMnistRoot, true);
  const auto& data = set.data();
  std::mt19937 random(1);
  const auto below = [&](int64_t end) { return static_cast<int64_t>(random() % static_cast<uint64_t>(end)); };
  const std::array<int64_t, 6> kinds = {0, 1, 3, 5, 8, 9};
  for (int64_t i = 0; i < count; ++i) {
    auto scene = at::linspace(20, 90, size, at::kFloat).view({size, 1}).expand({size, 2 * size}).clone();
    auto ids = at::full({size, 2 * size}, 7, at::kByte);
    for (int64_t placed = 0; placed < 4;) {
      const int64_t at = below(data.images.size(0)), kind = data.labels[at].item<int64_t>();
      const auto* const found = std::find(kinds.begin(), kinds.end(), kind);
      if (found == kinds.end()) continue;
      const int64_t top = below(size - 28 + 1), left = below(2 * size - 28 + 1);
      const auto garment = data.images[at];
      const auto mask = garment.gt(30);
      const auto window = [&](at::Tensor& whole) { return whole.slice(0, top, top + 28).slice(1, left, left + 28); };
      window(scene).copy_(at::where(mask, garment.to(at::kFloat), window(scene)));
      window(ids).masked_fill_(mask, kSceneIds[static_cast<size_t>(found - kinds.begin())]);
      ++placed;
    }
    const std::string split = i % 5 == 4 ? "val" : "train",
                      stem = hasten::text("fashion_", std::string(6 - std::to_string(i).size(), '0'), i, "_000000_");
    write_png(folder / "leftImg8bit" / split / "fashion" / (stem + "leftImg8bit.png"),
              scene.to(at::kByte).unsqueeze(2).expand({-1, -1, 3}));
    write_png(folder / "gtFine" / split / "fashion" / (stem + "gtFine_labelIds.png"), ids);
  }
}

/// Rank 0 makes the folder if it is not there; call it inside Accelerator::main_process_first.
template <class Write>
std::string made_folder(const std::string& given, const char* name, const Write& write) {
  if (!given.empty()) return given;
  const auto folder = std::filesystem::temp_directory_path() / hasten::text("hasten_example_", name);
  if (!std::filesystem::exists(folder)) {
    auto building = folder;
    building += hasten::text(".tmp-", ::getpid());
    write(building);
    std::error_code taken;
    std::filesystem::rename(building, folder, taken);
    if (taken) std::filesystem::remove_all(building);
  }
  return folder.string();
}

}  // namespace example
