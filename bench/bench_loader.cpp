// What a loader delivers: samples a second per sample, in whole batches and from JPEG files, and its memory.
//
// 60,000 samples of 1 x 28 x 28 bytes made to floats and normalised, batch 64, shuffled, 2 workers; 2,000
// JPEGs of 375 x 500 resized to 224 x 224. Loaders are an Accelerator's, as in a program that trains. The
// peer's program is peers/loader.py; --make writes the images for both.
#include <hasten/accelerator.h>
#include <hasten/data/dataset/image_folder.h>
#include <hasten/data/dataset/map.h>
#include <hasten/data/dataset/tensor_dataset.h>
#include <torch/torch.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <random>

#include <jpeglib.h>

#include "options.h"
#include "support.h"

namespace {

using Example = torch::data::Example<>;
using Stack = torch::data::transforms::Stack<>;

constexpr int kImages = 2000, kClasses = 10, kHeight = 375, kWidth = 500;

at::Tensor normalised(const at::Tensor& bytes) {
  return bytes.to(torch::kFloat).div_(255).sub_(0.5).div_(0.5);
}

/// As a user writes it.
class Samples : public torch::data::datasets::Dataset<Samples> {
 public:
  Samples(at::Tensor data, at::Tensor targets) : data_(std::move(data)), targets_(std::move(targets)) {}
  Example get(size_t index) override {
    const auto i = static_cast<int64_t>(index);
    return {normalised(data_[i]), targets_[i]};
  }
  std::optional<size_t> size() const override { return data_.size(0); }

 private:
  at::Tensor data_, targets_;
};

/// Samples a second: the median of `epochs` after one to warm up.
template <class Dataset>
double rate(const hasten::Accelerator& accelerator, Dataset dataset, int epochs) {
  auto batches = accelerator.data_loader(std::move(dataset), torch::data::DataLoaderOptions(64).workers(2));
  std::vector<double> rates;
  for (int epoch = 0; epoch <= epochs; ++epoch) {
    int64_t count = 0;
    const double ms = bench::time_ms([&] {
      for (auto& batch : batches) count += batch.target.size(0);
    });
    rates.push_back(1000 * static_cast<double>(count) / ms);
  }
  return bench::median({rates.begin() + 1, rates.end()});
}

/// Something like a photograph: broad shades, shapes with edges, a little noise.
void write_image(const std::filesystem::path& path, unsigned seed) {
  std::minstd_rand random(seed);
  std::uniform_real_distribution<float> any(0, 1);
  float phases[3][4];
  for (auto& channel : phases) {
    for (float& phase : channel) phase = any(random) * 6;
  }
  // Waves along x, along y and along the diagonal, by channel; each sine is computed once.
  const auto waves = [](int count, float length, float phase) {
    std::vector<float> values(static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) values[static_cast<size_t>(i)] = std::sin(static_cast<float>(i) / length + phase);
    return values;
  };
  std::vector<float> along_x[3], along_y[3], diagonal[3];
  for (int c = 0; c < 3; ++c) {
    along_x[c] = waves(kWidth, 67, phases[c][0]);
    along_y[c] = waves(kHeight, 41, phases[c][1]);
    diagonal[c] = waves(kWidth + kHeight, 5, phases[c][2]);
  }
  const auto edges_x = waves(kWidth, 31, phases[0][0]), edges_y = waves(kHeight, 23, 1.57F);
  std::vector<uint8_t> pixels(kHeight * kWidth * 3);
  for (size_t y = 0; y < kHeight; ++y) {
    for (size_t x = 0; x < kWidth; ++x) {
      const bool inside = edges_x[x] * edges_y[y] > 0.3F;
      for (size_t c = 0; c < 3; ++c) {
        const float shade = along_x[c][x] + along_y[c][y] + 0.3F * diagonal[c][x + y] + (inside ? phases[c][3] / 6 : 0);
        const float noise = static_cast<float>(random() & 255) / 256 - 0.5F;
        pixels[(y * kWidth + x) * 3 + c] =
            static_cast<uint8_t>(std::clamp(128 + 45 * shade + 24 * noise, 0.0F, 255.0F));
      }
    }
  }
  std::FILE* file = std::fopen(path.c_str(), "wb");
  if (!file) throw std::runtime_error("cannot write " + path.string());
  jpeg_compress_struct info;
  jpeg_error_mgr errors;
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  jpeg_stdio_dest(&info, file);
  info.image_height = kHeight;
  info.image_width = kWidth;
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 90, TRUE);
  jpeg_start_compress(&info, TRUE);
  for (int y = 0; y < kHeight; ++y) {
    JSAMPROW row = pixels.data() + static_cast<size_t>(y * kWidth * 3);
    jpeg_write_scanlines(&info, &row, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  std::fclose(file);
}

void make_images(const std::filesystem::path& folder) {
  const std::filesystem::path last = folder / "class_9" / "1999.jpg";
  if (std::filesystem::exists(last)) return;
  for (int i = 0; i < kImages; ++i) {
    const std::filesystem::path path =
        folder / ("class_" + std::to_string(i % kClasses)) / (std::to_string(i) + ".jpg");
    std::filesystem::create_directories(path.parent_path());
    write_image(path, static_cast<unsigned>(i));
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("samples a second of data loaders");
  std::string images;
  bool make = false;
  app.add_option("--images", images, "the folder of images")->required();
  app.add_flag("--make", make, "only write the images, if they are not there");
  bench::parse(app, argc, argv);
  if (make) {
    make_images(images);
    return 0;
  }
  torch::set_num_threads(1);
  const auto data = torch::randint(0, 255, {60000, 1, 28, 28}, torch::kByte);
  const auto targets = torch::randint(0, 10, {60000}, torch::kLong);

  const hasten::Accelerator accelerator;
  const double sample = rate(accelerator, Samples(data, targets).map(Stack()), 3);
  const double memory = bench::memory_mb("VmHWM");
  const auto whole = hasten::data::map(hasten::data::TensorDataset(data, targets), [](const Example& batch) {
    return Example(normalised(batch.data), batch.target);
  });
  const double batch = rate(accelerator, whole, 10);
  const hasten::data::ImageFolder folder(images, {.steps = {hasten::data::Resize{224, 224}}});
  const double image = rate(accelerator, folder.map(Stack()), 1);
  std::cout << "{\"sample\": " << sample << ", \"memory_mb\": " << memory << ", \"batch\": " << batch
            << ", \"images\": " << image << "}\n";
}
